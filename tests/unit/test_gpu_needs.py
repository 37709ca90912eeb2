"""The GPUs that a target asks for, and the promise of GPUs: what is read, and which errors are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dist_testing.core.ground.backends import backend_named
from dist_testing.core.ground.errors import SpecError, UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.gpus.needs import ALL_GPUS, GpuNeeds, needs_of, of_target, promised, read_promise

_GOOD = {"archs": ["sm_90"], "per_rank": 1, "ranks_per_gpu": 2}


def _spec(backend: str = "cuda_gloo", needs: GpuNeeds | None = None) -> Spec:
    return Spec("//t:x", backend_named(backend), (4,), "fork", settings={} if needs is None else {"gpus": needs})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file with the promise."""
    return tmp_path / "gpu_promise.json"


def promise_refusal(path: Path) -> str:
    """Return the error for a bad promise, and check that it names the file, a cause and a way out."""
    with pytest.raises(SpecError) as caught:
        read_promise(path, "nvidia")
    text = str(caught.value)
    assert str(path) in text.partition("\n")[0]
    assert len(text.splitlines()) == 3, text
    return text


def test_what_a_target_asks_for_is_read_completely() -> None:
    """If this fails, ranks get too few GPUs, or those of another kind."""
    assert of_target(_spec(), _GOOD) == GpuNeeds("cuda_gloo", 1, 2, ("sm_90",))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_rank": -1}, "per_rank = -1"),
        ({"per_rank": None}, "per_rank = None"),
        ({"per_rank": True}, "per_rank = True"),
        ({"per_rank": 0.5}, "per_rank = 0.5"),
        ({"ranks_per_gpu": 0}, "ranks_per_gpu = 0"),
        ({"archs": "sm_90"}, "archs = 'sm_90'"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_a_wrong_field_of_a_target_is_named(changes: dict[str, object], said: str) -> None:
    """If this fails, the user does not see that the target was built by another version."""
    with pytest.raises(SpecError) as caught:
        of_target(_spec(), {**_GOOD, **changes})
    first, _, way_out = str(caught.value).splitlines()
    assert first.startswith("//t:x, gpus: ")
    assert said in first
    assert way_out.startswith("Build the target again")


def test_ranks_that_need_several_gpus_do_not_share_gpus() -> None:
    """If this fails, ranks that need several GPUs share them, which is undefined, and get too few."""
    with pytest.raises(UsageError, match=r"^//t:x: ranks_per_gpu = 2 with backend cuda_gloo and 2 GPU\(s\) per rank"):
        of_target(_spec(), {**_GOOD, "per_rank": 2})


@pytest.mark.parametrize(("backend", "expected"), [("cuda_gloo", (1, 2)), ("nccl", (1, 1)), ("gloo", (0, 1))])
def test_another_backend_has_its_own_needs(backend: str, expected: tuple[int, int]) -> None:
    """If this fails, ranks of NCCL share a GPU, or ranks of gloo wait for one."""
    needs = needs_of(_spec(backend, GpuNeeds("cuda_gloo", 1, 2)))
    assert (needs.per_rank, needs.ranks_per_gpu) == expected


@pytest.mark.parametrize(("counts", "expected"), [({"nvidia": 8, "amd": 2}, 8), ({"nvidia": 0}, 0), (None, None)])
def test_a_promise_is_read(path: Path, counts: dict[str, int] | None, expected: int | None) -> None:
    """If this fails, missing hardware is a skip where it must be a failure."""
    path.write_text(json.dumps({"promised": counts, "schema": 1}), encoding="utf-8")
    assert read_promise(path, "nvidia") == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "damaged"),
        ("", "damaged"),
        ("[" * 100_000, "damaged"),
        ("[]", "expected an object"),
        ('{"schema": 2, "promised": null}', "schema = 2"),
        ('{"schema": 1, "promised": 8}', "promised = 8"),
        ('{"schema": 1, "promised": {}}', "nothing for nvidia"),
        ('{"schema": 1, "promised": {"nvidia": -1}}', "'nvidia': -1"),
        ('{"schema": 1, "promised": {"nvidia": "8"}}', "'nvidia': '8'"),
        ('{"schema": 1, "promised": {"nvidia": false}}', "'nvidia': False"),
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
    assert "damaged" in promise_refusal(path)


@pytest.mark.parametrize(("gpus_per_rank", "world_size", "gpus"), [(0, 4, 0), (1, 4, 4), (2, 8, 16)])
def test_a_world_needs_gpus_for_each_of_its_ranks(gpus_per_rank: int, world_size: int, gpus: int) -> None:
    """If this fails, two ranks are put on one GPU."""
    assert GpuNeeds("nccl", gpus_per_rank).of(world_size) == gpus


@pytest.mark.parametrize(
    ("gpus_per_rank", "count", "expected"),
    [(1, None, False), (1, 0, False), (1, 3, False), (1, 4, True), (1, 8, True), (2, 4, False), (0, 8, False)],
)
def test_a_promise_holds_for_worlds_that_fit_it(gpus_per_rank: int, count: int | None, expected: bool) -> None:
    """If this fails, a CPU world, or one larger than the promise, fails instead of being skipped."""
    assert bool(_spec("nccl", GpuNeeds("nccl", gpus_per_rank, promised=count)).promises(4)) is expected


@pytest.mark.parametrize(("count", "said"), [(4, "4 GPU(s) ("), (ALL_GPUS, "all the GPUs that tests ask for (")])
def test_a_promise_has_a_text(count: int, said: str) -> None:
    """If this fails, the report shows the internal number that means "all GPUs"."""
    assert promised(_spec("nccl", GpuNeeds("nccl", 1, promised=count)), 4).startswith(said)
