"""The table of backends, as Python reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from dist_testing.core.ground.backends import (
    Backend,
    add_backends,
    all_declared,
    any_declared,
    backend_named,
    backends,
    check_backend_name,
    check_features,
    default_backend,
    device_backend,
    parts_of,
)
from dist_testing.core.ground.errors import SpecError, UsageError
from tests.support.results import refusal

ENTRY: dict[str, Any] = {
    "name": "new",
    "torch_backend": "gloo",
    "device": "cpu",
    "gpus_per_rank": 0,
    "vendor": "",
    "timeout_s": 30,
    "register_module": "",
    "env": {"A": "1"},
    "features": ["cpu_tensors"],
    "in_process": False,
    "binds_device": False,
    "ends_with_process": False,
    "records_calls": False,
    "shares_gpus": False,
    "uses_nccl": False,
    "device_default": False,
}
ON_GPUS = {**ENTRY, "device": "cuda", "gpus_per_rank": 1, "vendor": "nvidia"}


@pytest.fixture(autouse=True)
def no_added_backends() -> Iterator[None]:
    """A test leaves the process with the library's own backends."""
    yield
    add_backends([])


RING = Backend("ring", "ring", "cpu", register_module="ring")


def test_every_declared_backend_can_be_asked_for_by_its_name() -> None:
    """If this fails, a target can name a backend that the runner does not have, or one library has one device."""
    assert {"gloo", "cuda_gloo", "nccl"} <= set(backends())
    for name, backend in backends().items():
        assert backend.name == name
        assert backend_named(name) is backend
        assert (backend.gpus_per_rank > 0) == bool(backend.vendor) == (backend.device != "cpu")
    # torch calls both "gloo".
    devices = {backend.device for backend in backends().values() if backend.torch_backend == "gloo"}
    assert devices >= {"cpu", "cuda"}
    assert (backend_named("gloo").torch_backend, backend_named("gloo").device) == ("gloo", "cpu")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("glo", "Did you mean 'gloo'?"), ("ncll", "Did you mean 'nccl'?"), ("zzz", None), ("", None), ("GLOO", None)],
)
def test_an_unknown_backend_is_refused_with_the_known_ones(name: str, hint: str | None) -> None:
    """If this fails, a user who mistypes a backend's name does not learn which name is close to it."""
    with pytest.raises(UsageError) as caught:
        backend_named(name)
    text = str(caught.value)
    assert repr(name) in text
    assert f"The declared backends are {', '.join(sorted(backends()))}" in text
    assert (hint in text) if hint else ("Did you mean" not in text)


def test_an_entry_is_read_completely() -> None:
    """If this fails, a key that only the build needs stops the runner, or the runner loses a field."""
    backend = Backend.from_json({**ENTRY, "only_the_build_needs_it": 1})
    expected = {**ENTRY, "features": ("cpu_tensors",)}
    assert {name: getattr(backend, name) for name in ENTRY} == expected
    assert {field.name for field in fields(Backend)} == set(ENTRY)
    # Of a device that a plug-in brings, nothing is counted or leased.
    backend = Backend.from_json({**ENTRY, "torch_backend": "hccl", "device": "npu", "register_module": "torch_npu"})
    assert (backend.device, backend.gpus_per_rank, backend.vendor) == ("npu", 0, "")


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        (None, "None"),
        ([], "[]"),
        ("gloo", "'gloo'"),
        (3, "3"),
        # Nothing gets a default that its author did not choose.
        *(({key: ENTRY[key] for key in ENTRY if key != name}, f"missing field ['{name}']") for name in ENTRY),
        ({**ENTRY, "features": [3]}, "features = 3; expected str"),
        # To Python a bool is a number, and this would be one second.
        ({**ENTRY, "timeout_s": True}, "timeout_s = True; expected"),
        ({**ENTRY, "gpus_per_rank": False}, "gpus_per_rank = False; expected"),
        ({**ENTRY, "uses_nccl": 1}, "uses_nccl = 1; expected"),
        ({**ENTRY, "name": "My-Ring"}, "name = 'My-Ring' is out of range"),
        ({**ENTRY, "torch_backend": ""}, "torch_backend = '' is out of range"),
        ({**ENTRY, "torch_backend": "cpu:gloo,cpu:mpi"}, "torch_backend = 'cpu:gloo,cpu:mpi' is out of range"),
        ({**ENTRY, "torch_backend": "cpu:gloo,nccl"}, "torch_backend = 'cpu:gloo,nccl' is out of range"),
        ({**ENTRY, "torch_backend": "xpu:xccl"}, "it has no backend for the device 'cpu'"),
        ({**ENTRY, "device": "cudda"}, "register_module names the module that brings another one"),
        ({**ENTRY, "device": "cuda"}, "gpus_per_rank = 0 is out of range"),
        ({**ENTRY, "gpus_per_rank": 1, "vendor": "nvidia"}, "gpus_per_rank = 1 is out of range"),
        ({**ON_GPUS, "vendor": ""}, "vendor = '' is out of range"),
        ({**ON_GPUS, "vendor": "nvida"}, "one of amd, intel, nvidia"),
        ({**ENTRY, "shares_gpus": True}, "shares_gpus = True is out of range"),
        *(({**ENTRY, "timeout_s": value}, f"timeout_s = {value} is out of range") for value in (0, -5)),
        ({**ENTRY, "gpus_per_rank": -1}, "gpus_per_rank = -1 is out of range"),
        ({**ENTRY, "features": ["telepathy"]}, "['telepathy'] is not among"),
        ({**ENTRY, "env": {"A": 1}}, "1; expected str"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_declaration_that_cannot_be_right_is_refused(entry: object, part: str) -> None:
    """A rule that only Bazel has would let plain pytest run something else."""
    with pytest.raises(SpecError, match=re.escape(part)):
        Backend.from_json(entry)


def test_facts_are_asked_of_every_part_of_a_torch_backend_string() -> None:
    """A group of gloo and NCCL needs the care that NCCL needs."""
    assert parts_of("cpu:gloo,cuda:nccl") == ("gloo", "nccl")
    assert parts_of("NCCL") == ("nccl",)
    assert all_declared("gloo", lambda backend: backend.ends_with_process)
    assert not all_declared("cpu:gloo,cuda:nccl", lambda backend: backend.ends_with_process)
    assert any_declared("cpu:gloo,cuda:nccl", lambda backend: backend.uses_nccl)
    assert not any_declared("gloo", lambda backend: backend.uses_nccl)
    # A group of an undeclared plug-in must be destroyed, because that is always right.
    assert not all_declared("somebodys", lambda backend: True)
    assert not any_declared("somebodys", lambda backend: True)


def test_there_is_one_default_for_each_device() -> None:
    """A device with two defaults would have the one that comes first by chance."""
    defaults = [backend for backend in backends().values() if backend.device_default]
    assert len({backend.device for backend in defaults}) == len(defaults)
    assert device_backend(default_backend().device) == default_backend()
    assert device_backend("npu") is None


def test_a_repository_adds_backends_for_one_session() -> None:
    """The next session of the process must not find those of the one before."""
    # The library's own declaration may come again, as it does with the spec of a target.
    add_backends([(RING, "here"), (RING, "there"), (backend_named("gloo"), "//t:x_gloo")], ["star"])
    assert backend_named("ring") == RING
    assert backend_named("gloo").device_default
    check_backend_name("star")
    assert any_declared("ring", lambda backend: backend is RING)
    add_backends([])
    assert "'ring' is not declared" in refusal(lambda: backend_named("ring"))
    assert "'star' is not declared" in refusal(lambda: check_backend_name("star"))


@pytest.mark.parametrize(
    ("declared", "part"),
    [
        ([RING, replace(RING, timeout_s=5)], "'ring' is declared twice: by file 0 and by file 1"),
        ([replace(RING, name="gloo")], "'gloo' is declared twice: by dist_testing itself and by file 0"),
        ([replace(RING, device_default=True)], "Backend 'gloo' is the default of that device"),
    ],
)
def test_declarations_that_cannot_live_together_are_refused(declared: list[Backend], part: str) -> None:
    """Which backend a test gets would depend on the order of files, or on what some conftest.py declares."""
    declarations = [(backend, f"file {number}") for number, backend in enumerate(declared)]
    assert part in refusal(lambda: add_backends(declarations))


def test_an_unknown_feature_is_refused_with_the_nearest() -> None:
    """A test that asks for a misspelt feature would run nowhere, without a word."""
    check_features(["moves_data"])
    with pytest.raises(UsageError, match="Did you mean 'moves_data'"):
        check_features(["move_data"])


def test_a_test_cannot_change_the_table() -> None:
    """If this fails, one test changes the backend table for all later cases of the run."""
    gloo: Any = backend_named("gloo")
    with pytest.raises(FrozenInstanceError):
        gloo.timeout_s = 1
    with pytest.raises(TypeError):
        gloo.env["X"] = "1"
    table: Any = backends()
    with pytest.raises(TypeError):
        table["mine"] = gloo
