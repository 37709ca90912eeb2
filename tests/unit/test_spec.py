"""The spec of a target and the promise of GPUs: what is read, and which errors are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.ground.backends import backend_named
from dist_testing.core.ground.errors import SpecError
from dist_testing.core.ground.spec import MAX_WORLD_SIZE, SCHEMA, SPEC_VARIABLE, Spec, read_promise, read_spec

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
    "gpu_archs": [],
    "gpus_per_rank": 0,
    "isolation": "fork",
    "nodes": 1,
    "program_exits": None,
    "ranks_per_gpu": 1,
    "backends": ["gloo", "ring"],
    "schema": 5,
    "srcs": ["//tests:test_a.py"],
    "target": "//tests:a_gloo",
    "world_sizes": [2, 4],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file with the promise."""
    return tmp_path / "gpu_promise.json"


def refusal(content: object) -> str:
    """Return the error for a bad spec, and check that it names the variable, a cause and a way out."""
    with pytest.raises(SpecError) as caught:
        read_spec(content if isinstance(content, str) else json.dumps(content))
    text = str(caught.value)
    assert SPEC_VARIABLE in text.partition("\n")[0]
    assert len(text.splitlines()) == 3, text
    return text


def promise_refusal(path: Path) -> str:
    """Return the error for a bad promise, and check that it names the file, a cause and a way out."""
    with pytest.raises(SpecError) as caught:
        read_promise(path, "nvidia")
    text = str(caught.value)
    assert str(path) in text.partition("\n")[0]
    assert len(text.splitlines()) == 3, text
    return text


def test_a_good_spec_is_read_completely() -> None:
    """If this fails, a field is lost for every case of the target."""
    spec = read_spec(json.dumps(GOOD))
    assert spec.backend.name == "gloo"
    assert dict(spec.backend.env) == BACKEND["env"]
    assert (spec.target, spec.world_sizes, spec.srcs) == ("//tests:a_gloo", (2, 4), ("//tests:test_a.py",))
    assert (spec.gpus_per_rank, spec.isolation, spec.promised_gpus) == (0, "fork", None)
    assert spec.backend_names == ("gloo", "ring")


@pytest.mark.parametrize(("promised", "expected"), [({"nvidia": 8, "amd": 2}, 8), ({"nvidia": 0}, 0), (None, None)])
def test_a_promise_is_read(path: Path, promised: dict[str, int] | None, expected: int | None) -> None:
    """If this fails, missing hardware is a skip where it must be a failure."""
    path.write_text(json.dumps({"promised": promised, "schema": 1}), encoding="utf-8")
    assert read_promise(path, "nvidia") == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "schema = None"),
        ('{"schema": 2, "promised": null}', "schema 2"),
        ('{"schema": 1, "promised": 8}', "promised = 8"),
        ('{"schema": 1, "promised": {}}', "nvidia = None"),
        ('{"schema": 1, "promised": {"nvidia": -1}}', "nvidia = -1"),
        ('{"schema": 1, "promised": {"nvidia": "8"}}', "nvidia = '8'"),
        ('{"schema": 1, "promised": {"nvidia": false}}', "nvidia = False"),
    ],
    ids=["cut off", "empty", "nested", "list", "newer", "number", "no vendor", "negative", "text", "bool"],
)
def test_a_bad_promise_is_refused(path: Path, content: str, said: str) -> None:
    """If this fails, a damaged promise counts as no promise, and failures become skips."""
    path.write_text(content, encoding="utf-8")
    assert said in promise_refusal(path)


def test_a_missing_promise_says_how_to_run_the_target(path: Path) -> None:
    """If this fails, a user who starts the main program by hand does not learn the right command."""
    assert "`bazel test`" in promise_refusal(path)


def test_a_directory_is_not_a_promise(tmp_path: Path) -> None:
    """If this fails, a path that was cut off, and names a folder, causes a traceback."""
    assert "cannot be read" in promise_refusal(tmp_path)


def test_bytes_that_are_not_text_are_refused(path: Path) -> None:
    """If this fails, a damaged file causes a traceback."""
    path.write_bytes(b"\xff\xfe\xfa{}")
    assert "cannot be read" in promise_refusal(path)


@pytest.mark.parametrize("kept", [0, 1, 40, -3])
def test_a_truncated_file_says_its_length(kept: int) -> None:
    """If this fails, a file that a full disk cut off is not recognised by its length."""
    text = json.dumps(GOOD)[:kept]
    assert f"{len(text)} characters" in refusal(text)


def test_absurd_nesting_is_refused() -> None:
    """If this fails, the parser's own error about deep nesting reaches the user."""
    refusal("[" * 100_000)


@pytest.mark.parametrize("content", ["[]", "3", "null", '"spec"', "{}"])
def test_json_that_is_not_a_spec_is_refused(content: str) -> None:
    """If this fails, JSON that the rules did not write counts as a spec."""
    assert "schema = None" in refusal(content)


def test_a_newer_schema_is_refused_with_both_numbers() -> None:
    """If this fails, a field of a newer version is ignored although it may change what the test means."""
    text = refusal({**GOOD, "schema": SCHEMA + 1})
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
        ("nodes", 65),
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
        ("isolation", ""),
        ("isolation", None),
        ("target", ""),
        ("target", 5),
        ("gpus_per_rank", -1),
        ("gpus_per_rank", None),
        ("gpus_per_rank", True),
        ("gpus_per_rank", 0.5),
        ("backends", None),
        ("backends", []),
        ("backends", [BACKEND]),
        ("srcs", []),
        ("srcs", "test_a.py"),
        ("srcs", [1]),
        ("ranks_per_gpu", 0),
        ("ranks_per_gpu", 2),
        ("ranks_per_gpu", None),
    ],
    ids=lambda value: repr(value) if not isinstance(value, str) else value or "empty",
)
def test_a_wrong_field_is_named_with_its_value(name: str, value: object) -> None:
    """If this fails, the user does not see that the target was built by another version."""
    text = refusal({**GOOD, name: value})
    assert f"{name} = {value!r}; expected" in text
    assert "Build the target again" in text


def test_ranks_that_need_several_gpus_do_not_share_gpus() -> None:
    """If this fails, ranks that need several GPUs share them, which is undefined, and get too few."""
    backend = {**BACKEND, "device": "cuda", "gpus_per_rank": 1, "vendor": "nvidia", "shares_gpus": True}
    good = {**GOOD, "backend": backend, "gpus_per_rank": 1, "ranks_per_gpu": 2}
    assert read_spec(json.dumps(good)).ranks_per_gpu == 2
    assert "ranks_per_gpu = 2; expected 1" in refusal({**good, "gpus_per_rank": 2})


@pytest.mark.parametrize("name", ["schema", "nodes", "world_sizes", "isolation", "target", "gpus_per_rank", "srcs"])
def test_a_missing_field_is_named(name: str) -> None:
    """If this fails, a missing field gets a silent default."""
    assert f"{name} = None; expected" in refusal({key: value for key, value in GOOD.items() if key != name})


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
        ({**BACKEND, "torch_backend": "cpu:gloo,gloo"}, "torch_backend = 'cpu:gloo,gloo'"),
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
        "half mixed",
    ],
)
def test_a_wrong_backend_is_refused_like_any_other_field(backend: object, part: str) -> None:
    """If this fails, an error in the backend part of the spec has another form than the other errors."""
    assert part in refusal({**GOOD, "backend": backend})


@pytest.mark.parametrize(("gpus_per_rank", "world_size", "gpus"), [(0, 4, 0), (1, 4, 4), (2, 8, 16)])
def test_a_world_needs_gpus_for_each_of_its_ranks(gpus_per_rank: int, world_size: int, gpus: int) -> None:
    """If this fails, two ranks are put on one GPU."""
    assert Spec("", backend_named("gloo"), (2,), gpus_per_rank, "fork").gpus(world_size) == gpus


@pytest.mark.parametrize(
    ("gpus_per_rank", "promised", "expected"),
    [(1, None, False), (1, 0, False), (1, 3, False), (1, 4, True), (1, 8, True), (2, 4, False), (0, 8, False)],
)
def test_a_promise_holds_for_worlds_that_fit_it(gpus_per_rank: int, promised: int | None, expected: bool) -> None:
    """If this fails, a CPU world, or one larger than the promise, fails instead of being skipped."""
    spec = Spec("", backend_named("gloo"), (4,), gpus_per_rank, "fork", promised_gpus=promised)
    assert spec.promises(4) is expected
