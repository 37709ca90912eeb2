"""The spec file of a target: what is read, and what is refused and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dist_testing.backends import backend_named
from dist_testing.errors import SpecError
from dist_testing.spec import MAX_WORLD_SIZE, SCHEMA, Spec, load_spec

BACKEND: dict[str, Any] = {
    "device": "cpu",
    "env": {"GLOO_SOCKET_IFNAME": "lo"},
    "features": ["cpu_tensors"],
    "gpus_per_rank": 0,
    "isolations": ["fork", "spawn", "pool"],
    "name": "gloo",
    "register_module": "",
    "timeout_s": 60,
    "torch_backend": "gloo",
    "vendor": "",
}
# As the build writes it.
GOOD: dict[str, Any] = {
    "backend": BACKEND,
    "gpus_per_rank": 0,
    "isolation": "fork",
    "nodes": 1,
    "promised_gpus": None,
    "schema": 1,
    "srcs": ["_main/tests/test_a.py"],
    "target": "//tests:a_gloo",
    "world_sizes": [2, 4],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the spec file of a case is."""
    return tmp_path / "a_gloo.spec.json"


def refusal(path: Path) -> str:
    """The text of the error for a bad file; it must name the file and have a cause and a way out."""
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    text = str(caught.value)
    assert str(path) in text.partition("\n")[0]
    assert len(text.splitlines()) == 3, text
    return text


def test_a_good_file_is_read_whole(path: Path) -> None:
    """Anything lost here is lost for every case."""
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    spec = load_spec(path)
    assert spec.backend.name == "gloo"
    assert dict(spec.backend.env) == BACKEND["env"]
    assert (spec.target, spec.world_sizes, spec.srcs) == ("//tests:a_gloo", (2, 4), ("_main/tests/test_a.py",))
    assert (spec.gpus_per_rank, spec.isolation, spec.promised_gpus) == (0, "fork", None)


@pytest.mark.parametrize(
    ("fields", "timings"), [({}, ""), ({"timings": None}, ""), ({"timings": "_main/a/t.json"}, "_main/a/t.json")]
)
def test_a_file_of_timings_may_be_named(path: Path, fields: dict[str, str | None], timings: str) -> None:
    """Targets without one are dealt out in turn."""
    path.write_text(json.dumps({**GOOD, **fields}), encoding="utf-8")
    assert load_spec(path).timings == timings


def test_a_promise_is_read(path: Path) -> None:
    """Dropping it would make failures into skips."""
    path.write_text(json.dumps({**GOOD, "gpus_per_rank": 1, "promised_gpus": 8}), encoding="utf-8")
    spec = load_spec(path)
    assert (spec.gpus_per_rank, spec.promised_gpus) == (1, 8)


def test_a_missing_file_says_how_to_run_the_target(path: Path) -> None:
    """It is what happens when a main is started by hand."""
    assert "`bazel test`" in refusal(path)


def test_a_directory_is_no_spec(tmp_path: Path) -> None:
    """A path that was cut off often is one."""
    assert "cannot be read" in refusal(tmp_path)


def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    """No traceback of ours for a file that was damaged."""
    path.write_bytes(b"\xff\xfe\xfa{}")
    assert "cannot be read" in refusal(path)


@pytest.mark.parametrize("kept", [0, 1, 40, -3])
def test_a_truncated_file_says_its_length(path: Path, kept: int) -> None:
    """A full disk leaves such files behind."""
    text = json.dumps(GOOD)[:kept]
    path.write_text(text, encoding="utf-8")
    assert f"{len(text)} characters" in refusal(path)


def test_absurd_nesting_is_refused(path: Path) -> None:
    """The parser gives up on it in its own way, which must not reach the user."""
    path.write_text("[" * 100_000, encoding="utf-8")
    refusal(path)


@pytest.mark.parametrize("content", ["[]", "3", "null", '"spec"', "{}"])
def test_json_that_is_no_spec_is_refused(path: Path, content: str) -> None:
    """Whatever it is, it was not written by the rules."""
    path.write_text(content, encoding="utf-8")
    assert "schema = None" in refusal(path)


def test_a_newer_schema_is_refused_with_both_numbers(path: Path) -> None:
    """A field that this version does not know could change what the test means."""
    path.write_text(json.dumps({**GOOD, "schema": SCHEMA + 1}), encoding="utf-8")
    text = refusal(path)
    assert f"schema {SCHEMA + 1}" in text
    assert f"schema {SCHEMA}." in text
    assert "one version of dist_testing" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", 0),
        ("schema", "1"),
        ("schema", True),
        ("nodes", 2),
        ("nodes", 0),
        ("nodes", None),
        ("world_sizes", []),
        ("world_sizes", 4),
        ("world_sizes", [0]),
        ("world_sizes", [2, -1]),
        ("world_sizes", [2.0]),
        ("world_sizes", [True]),
        ("world_sizes", ["2"]),
        ("world_sizes", [MAX_WORLD_SIZE + 1]),
        ("isolation", "thread"),
        ("isolation", ""),
        ("isolation", None),
        ("target", ""),
        ("target", 5),
        ("gpus_per_rank", -1),
        ("gpus_per_rank", None),
        ("gpus_per_rank", True),
        ("gpus_per_rank", 0.5),
        ("srcs", []),
        ("srcs", "test_a.py"),
        ("srcs", [1]),
        ("timings", ""),
        ("timings", 5),
        ("promised_gpus", -1),
        ("promised_gpus", "8"),
        ("promised_gpus", False),
    ],
    ids=lambda value: repr(value) if not isinstance(value, str) else value or "empty",
)
def test_a_wrong_field_is_named_with_its_value(path: Path, name: str, value: object) -> None:
    """File, field, value and way out: what one needs to see that the build is of another version."""
    path.write_text(json.dumps({**GOOD, name: value}), encoding="utf-8")
    text = refusal(path)
    assert f"{name} = {value!r}; expected" in text
    assert "Build the target again" in text


@pytest.mark.parametrize("name", ["schema", "nodes", "world_sizes", "isolation", "target", "gpus_per_rank", "srcs"])
def test_a_missing_field_is_named(path: Path, name: str) -> None:
    """No field has a silent default."""
    path.write_text(json.dumps({key: value for key, value in GOOD.items() if key != name}), encoding="utf-8")
    assert f"{name} = None; expected" in refusal(path)


@pytest.mark.parametrize(
    ("backend", "part"),
    [
        (None, "None"),
        ([], "[]"),
        ({**BACKEND, "timeout_s": "60"}, "timeout_s = '60'"),
        ({**BACKEND, "device": None}, "device = None"),
        ({key: value for key, value in BACKEND.items() if key != "name"}, "name = None"),
        ({**BACKEND, "timeout_s": 0}, "timeout_s = 0"),
        ({**BACKEND, "timeout_s": -5}, "timeout_s = -5"),
        ({**BACKEND, "gpus_per_rank": -1}, "gpus_per_rank = -1"),
        ({**BACKEND, "name": ""}, "name = ''"),
    ],
    ids=[
        "null",
        "list",
        "wrong type",
        "null field",
        "missing field",
        "no time",
        "negative",
        "negative GPUs",
        "unnamed",
    ],
)
def test_a_wrong_backend_is_refused_like_any_other_field(path: Path, backend: object, part: str) -> None:
    """The backend is part of the same file, so its errors name that file and the way out too."""
    path.write_text(json.dumps({**GOOD, "backend": backend}), encoding="utf-8")
    assert part in refusal(path)


@pytest.mark.parametrize(("gpus_per_rank", "world_size", "gpus"), [(0, 4, 0), (1, 4, 4), (2, 8, 16)])
def test_a_world_needs_gpus_for_each_of_its_ranks(gpus_per_rank: int, world_size: int, gpus: int) -> None:
    """Fewer would put two ranks on one GPU."""
    assert Spec("", backend_named("gloo"), (2,), gpus_per_rank).gpus(world_size) == gpus


@pytest.mark.parametrize(
    ("gpus_per_rank", "promised", "expected"),
    [(1, None, False), (1, 0, False), (1, 3, False), (1, 4, True), (1, 8, True), (2, 4, False), (0, 8, False)],
)
def test_a_promise_holds_for_worlds_that_fit_it(gpus_per_rank: int, promised: int | None, expected: bool) -> None:
    """A CPU world is promised nothing, and a world that is too large may still be skipped."""
    spec = Spec("", backend_named("gloo"), (4,), gpus_per_rank, promised_gpus=promised)
    assert spec.promises(4) is expected
