"""The table of backends as Python reads it."""

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
    """A backend that targets can name must exist for the runner."""
    assert {"gloo", "cuda_gloo", "nccl"} <= set(backends())
    for name, backend in backends().items():
        assert backend.name == name
        assert backend_named(name) is backend


@pytest.mark.parametrize("name", list(backends()))
def test_a_backend_is_possible(name: str) -> None:
    """A backend with GPUs and no vendor, or without a time limit, cannot be scheduled."""
    backend = backends()[name]
    assert backend.timeout_s > 0
    assert backend.gpus_per_rank >= 0
    assert (backend.gpus_per_rank > 0) == bool(backend.vendor) == (backend.device != "cpu")
    assert set(backend.isolations) <= set(isolation_names())


def test_a_backend_of_torch_on_another_device_is_a_backend_of_its_own() -> None:
    """One library on CPU and on CUDA tensors are two targets, and torch is told "gloo" by both."""
    devices = {backend.device for backend in backends().values() if backend.torch_backend == "gloo"}
    assert devices >= {"cpu", "cuda"}
    assert (backend_named("gloo").torch_backend, backend_named("gloo").device) == ("gloo", "cpu")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("glo", "Did you mean 'gloo'?"), ("ncll", "Did you mean 'nccl'?"), ("zzz", None), ("", None), ("GLOO", None)],
)
def test_an_unknown_backend_is_refused_with_the_known_ones(name: str, hint: str | None) -> None:
    """A slip of the pen must say what could have been meant."""
    with pytest.raises(UsageError) as caught:
        backend_named(name)
    text = str(caught.value)
    assert repr(name) in text
    assert f"Declared are {', '.join(sorted(backends()))}" in text
    assert (hint in text) if hint else ("Did you mean" not in text)


def test_an_entry_is_read_whole() -> None:
    """Keys that only the build needs are left to it."""
    backend = Backend.from_json({**ENTRY, "only_the_build_needs_it": 1})
    expected = {**ENTRY, "isolations": ("fork",), "features": ("cpu_tensors",)}
    assert {name: getattr(backend, name) for name in ENTRY} == expected


@pytest.mark.parametrize("name", list(ENTRY))
def test_a_missing_field_is_named(name: str) -> None:
    """Half a declaration must not run with a default that nobody chose."""
    with pytest.raises(SpecError, match=f"{name} = None; expected"):
        Backend.from_json({key: value for key, value in ENTRY.items() if key != name})


@pytest.mark.parametrize("name", list(ENTRY))
@pytest.mark.parametrize("value", [None, True, 1.5, b"x"], ids=repr)
def test_a_field_of_the_wrong_type_is_named_with_its_value(name: str, value: object) -> None:
    """`"timeout_s": true` is not one second."""
    with pytest.raises(SpecError) as caught:
        Backend.from_json({**ENTRY, name: value})
    assert f"{name} = {value!r}; expected {type(ENTRY[name]).__name__}" in str(caught.value)


@pytest.mark.parametrize("entry", [None, [], "gloo", 3], ids=repr)
def test_an_entry_that_is_no_object_is_refused(entry: object) -> None:
    """With its value, so that it can be found."""
    with pytest.raises(SpecError) as caught:
        Backend.from_json(entry)
    assert repr(entry) in str(caught.value)


def test_the_table_cannot_be_changed_by_a_test() -> None:
    """It is shared by all cases of a run."""
    gloo: Any = backend_named("gloo")
    with pytest.raises(FrozenInstanceError):
        gloo.timeout_s = 1
    with pytest.raises(TypeError):
        gloo.env["X"] = "1"
    table: Any = backends()
    with pytest.raises(TypeError):
        table["mine"] = gloo
