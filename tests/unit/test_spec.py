"""The spec of a target: what is read, and which errors are reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dist_testing.core.ground.errors import SpecError
from dist_testing.core.ground.spec import MAX_WORLD_SIZE, SCHEMA, SPEC_VARIABLE, number_in, read_spec
from tests.support.results import refusal

BACKEND: dict[str, Any] = {
    "device": "cpu",
    "env": {"GLOO_SOCKET_IFNAME": "lo"},
    "features": ["cpu_tensors"],
    "gpus_per_rank": 0,
    "in_process": False,
    "binds_device": False,
    "ends_with_process": True,
    "records_calls": True,
    "shares_gpus": False,
    "uses_nccl": False,
    "device_default": True,
    "name": "gloo",
    "register_module": "",
    "timeout_s": 60,
    "torch_backend": "gloo",
    "vendor": "",
}
# As the build writes it.
GOOD: dict[str, Any] = {
    "backend": BACKEND,
    "isolation": "fork",
    "backends": ["gloo", "ring"],
    "schema": 7,
    "settings": {},
    "srcs": ["//tests:test_a.py"],
    "target": "//tests:a_gloo",
    "world_sizes": [2, 4],
}


def refused(content: object) -> str:
    """Return the error for a bad spec, which names the variable."""
    text = refusal(lambda: read_spec(content if isinstance(content, str) else json.dumps(content)), SpecError)
    assert SPEC_VARIABLE in text.partition("\n")[0]
    return text


def test_a_good_spec_is_read_completely() -> None:
    """If this fails, a field is lost for every case of the target."""
    spec = read_spec(json.dumps(GOOD))
    assert spec.backend.name == "gloo"
    assert dict(spec.backend.env) == BACKEND["env"]
    assert (spec.target, spec.world_sizes, spec.srcs) == ("//tests:a_gloo", (2, 4), ("//tests:test_a.py",))
    assert (spec.isolation, spec.settings, spec.promises(2)) == ("fork", {}, "")
    assert spec.backend_names == ("gloo", "ring")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((content, "schema = None") for content in ("[]", "3", "null", '"spec"', "{}")),
        # A full disk cuts a file off. The parser's own error about deep nesting would reach the user.
        *((text, f"{len(text)} characters") for text in ("", "{", json.dumps(GOOD)[:-3], "[" * 100_000)),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_not_a_spec_is_refused(content: str, said: str) -> None:
    """If this fails, JSON that the rules did not write counts as a spec."""
    assert said in refused(content)


def test_a_newer_schema_is_refused_with_both_numbers() -> None:
    """If this fails, a field of a newer version is ignored although it may change what the test means."""
    text = refused({**GOOD, "schema": SCHEMA + 1})
    assert f"schema {SCHEMA + 1}" in text
    assert f"schema {SCHEMA}." in text
    assert "one version of dist_testing" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", 0),
        ("schema", 2),
        ("schema", "1"),
        ("schema", True),
        ("settings", None),
        ("settings", ["nodes"]),
        ("world_sizes", []),
        ("world_sizes", 4),
        ("world_sizes", [0]),
        ("world_sizes", [2, -1]),
        ("world_sizes", [2.0]),
        ("world_sizes", [True]),
        ("world_sizes", ["2"]),
        ("world_sizes", [MAX_WORLD_SIZE + 1]),
        ("isolation", ""),
        ("isolation", None),
        ("target", ""),
        ("target", 5),
        ("backends", None),
        ("backends", []),
        ("backends", [BACKEND]),
        ("srcs", []),
        ("srcs", "test_a.py"),
        ("srcs", [1]),
        # Missing: no field gets a silent default.
        *((name, ...) for name in ("schema", "settings", "world_sizes", "isolation", "target", "srcs")),
    ],
    ids=lambda value: repr(value) if not isinstance(value, str) else value or "empty",
)
def test_a_wrong_field_is_named_with_its_value(name: str, value: object) -> None:
    """If this fails, the user does not see that the target was built by another version."""
    content = {key: one for key, one in {**GOOD, name: value}.items() if one is not ...}
    text = refused(content)
    assert f"{name} = {None if value is ... else value!r}; expected" in text
    assert "Build the target again" in text


@pytest.mark.parametrize(
    ("backend", "part"),
    [
        (None, "None"),
        ([], "[]"),
        ({**BACKEND, "timeout_s": "60"}, "timeout_s = '60'"),
        ({key: value for key, value in BACKEND.items() if key != "name"}, "missing field ['name']"),
        ({**BACKEND, "timeout_s": 0}, "timeout_s = 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_backend_is_refused_like_any_other_field(backend: object, part: str) -> None:
    """If this fails, an error in the backend has another form than the other errors. test_backends.py has them all."""
    assert part in refused({**GOOD, "backend": backend})


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("12", 12), ("-1", None), ("", None), ("1.0", None), ("\u0663", None), ("9" * 5000, None)],
)
def test_a_text_is_a_number_or_none(text: str, number: int | None) -> None:
    """If this fails, an option with a typing error ends the run with a traceback of Python."""
    assert number_in(text) == number
