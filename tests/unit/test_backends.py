"""The table of backends, as Python reads it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from dist_testing.backends import Backend, backend_named, backends
from dist_testing.errors import SpecError, UsageError
from dist_testing.launch.isolation import isolation_names

ENTRY: dict[str, Any] = {
    "name": "new",
    "torch_backend": "gloo",
    "device": "cpu",
    "gpus_per_rank": 0,
    "vendor": "",
    "timeout_s": 30,
    "register_module": "",
    "env": {"A": "1"},
    "isolations": ["fork"],
    "features": ["cpu_tensors"],
}


def test_every_declared_backend_can_be_asked_for_by_its_name() -> None:
    """If this fails, a target can name a backend that the runner does not have."""
    assert {"gloo", "cuda_gloo", "nccl"} <= set(backends())
    for name, backend in backends().items():
        assert backend.name == name
        assert backend_named(name) is backend


@pytest.mark.parametrize("name", list(backends()))
def test_a_backend_is_consistent(name: str) -> None:
    """If this fails, a backend has GPUs and no vendor, or no time limit, and no machine can run it."""
    backend = backends()[name]
    assert backend.timeout_s > 0
    assert backend.gpus_per_rank >= 0
    assert (backend.gpus_per_rank > 0) == bool(backend.vendor) == (backend.device != "cpu")
    assert set(backend.isolations) <= set(isolation_names())


def test_a_torch_backend_on_another_device_is_a_separate_backend() -> None:
    """If this fails, one library cannot be tested both on CPU and on CUDA tensors. torch calls both "gloo"."""
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
    assert f"Declared are {', '.join(sorted(backends()))}" in text
    assert (hint in text) if hint else ("Did you mean" not in text)


def test_an_entry_is_read_completely() -> None:
    """If this fails, a key that only the build needs stops the runner, or the runner loses a field."""
    backend = Backend.from_json({**ENTRY, "only_the_build_needs_it": 1})
    expected = {**ENTRY, "isolations": ("fork",), "features": ("cpu_tensors",)}
    assert {name: getattr(backend, name) for name in ENTRY} == expected


@pytest.mark.parametrize("name", list(ENTRY))
def test_a_missing_field_is_named(name: str) -> None:
    """If this fails, an incomplete declaration runs with a default that its author did not choose."""
    with pytest.raises(SpecError, match=f"{name} = None; expected"):
        Backend.from_json({key: value for key, value in ENTRY.items() if key != name})


@pytest.mark.parametrize("name", list(ENTRY))
@pytest.mark.parametrize("value", [None, True, 1.5, b"x"], ids=repr)
def test_a_field_of_the_wrong_type_is_named_with_its_value(name: str, value: object) -> None:
    """If this fails, `"timeout_s": true` means one second."""
    with pytest.raises(SpecError) as caught:
        Backend.from_json({**ENTRY, name: value})
    assert f"{name} = {value!r}; expected {type(ENTRY[name]).__name__}" in str(caught.value)


@pytest.mark.parametrize("entry", [None, [], "gloo", 3], ids=repr)
def test_an_entry_that_is_not_an_object_is_refused(entry: object) -> None:
    """If this fails, a user cannot find the wrong entry, because the error does not quote it."""
    with pytest.raises(SpecError) as caught:
        Backend.from_json(entry)
    assert repr(entry) in str(caught.value)


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
