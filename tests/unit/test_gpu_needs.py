"""The GPUs that a target asks for, and the promise of GPUs: what is read, and which errors are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dist_testing.core.ground.backends import backend_named
from dist_testing.core.ground.errors import DistTestingError, SpecError
from dist_testing.core.ground.spec import Spec
from dist_testing.gpus.needs import ALL_GPUS, GpuNeeds, from_options, needs_of, of_target, promised, read_promise
from tests.support.results import refusal

_GOOD = {"archs": ["sm_90"], "per_rank": 1, "ranks_per_gpu": 2}


def _spec(backend: str = "cuda_gloo", needs: GpuNeeds | None = None) -> Spec:
    return Spec("//t:x", backend_named(backend), (4,), "fork", settings={} if needs is None else {"gpus": needs})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file with the promise."""
    return tmp_path / "gpu_promise.json"


def refused(path: Path) -> str:
    """Return the error for a bad promise, which names the file."""
    text = refusal(lambda: read_promise(path, "nvidia"), SpecError)
    assert str(path) in text.partition("\n")[0]
    return text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_rank": -1}, "gpus: per_rank = -1"),
        ({"per_rank": None}, "gpus: per_rank = None"),
        ({"per_rank": True}, "gpus: per_rank = True"),
        ({"per_rank": 0.5}, "gpus: per_rank = 0.5"),
        ({"ranks_per_gpu": 0}, "gpus: ranks_per_gpu = 0"),
        ({"archs": "sm_90"}, "gpus: archs = 'sm_90'"),
        ({"more": 1}, "gpus: unknown field"),
        # Which GPUs such ranks share is undefined.
        ({"per_rank": 2}, "ranks_per_gpu = 2 with backend cuda_gloo and 2 GPU(s) per rank"),
    ],
)
def test_what_a_target_cannot_ask_for_is_named(changes: dict[str, object], said: str) -> None:
    """If this fails, ranks get too few GPUs, or the user does not see that another version built the target."""
    assert of_target(_spec(), _GOOD) == GpuNeeds("cuda_gloo", 1, 2, ("sm_90",))
    first, _, way_out = refusal(lambda: of_target(_spec(), {**_GOOD, **changes}), DistTestingError).splitlines()
    assert first.startswith(f"//t:x, {said}" if said.startswith("gpus") else f"//t:x: {said}")
    assert way_out.startswith("Build the target again") or not said.startswith("gpus")


@pytest.mark.parametrize(
    ("backend", "count", "said"),
    [
        ("rccl", "2", "backend rccl and 1 GPU(s) per rank"),
        ("gloo", "2", "backend gloo and 0 GPU(s) per rank"),
        ("cuda_gloo", "0", "expected a number from 1"),
        ("cuda_gloo", "two", "expected a number from 1"),
    ],
)
def test_ranks_that_cannot_share_are_refused(backend: str, count: str, said: str) -> None:
    """RCCL itself reports "Duplicate GPU detected" after a minute."""
    assert from_options(_spec("nccl"), {"--dist-ranks-per-gpu": "4"}) == GpuNeeds("nccl", 1, 4)
    first, *_ = refusal(lambda: from_options(_spec(backend), {"--dist-ranks-per-gpu": count})).splitlines()
    assert first.startswith(f"--dist-ranks-per-gpu={count}")
    assert said in first


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
        (b"{", "damaged"),
        (b"", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"\xff\xfe\xfa{}", "damaged"),
        (b"[]", "expected an object"),
        (b'{"schema": 2, "promised": null}', "schema = 2"),
        (b'{"schema": 1, "promised": 8}', "promised = 8"),
        (b'{"schema": 1, "promised": {}}', "nothing for nvidia"),
        (b'{"schema": 1, "promised": {"nvidia": -1}}', "'nvidia': -1"),
        (b'{"schema": 1, "promised": {"nvidia": "8"}}', "'nvidia': '8'"),
        (b'{"schema": 1, "promised": {"nvidia": false}}', "'nvidia': False"),
        # A user who starts the main program by hand.
        (None, "`bazel test`"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_bad_promise_is_refused(path: Path, content: bytes | None, said: str) -> None:
    """If this fails, a damaged promise counts as no promise, and failures become skips."""
    if content is not None:
        path.write_bytes(content)
    assert said in refused(path)
    # A path that was cut off.
    assert "cannot be read" in refused(path.parent)


@pytest.mark.parametrize(
    ("gpus_per_rank", "count", "expected"),
    [
        (1, None, ""),
        (1, 0, ""),
        (1, 3, ""),
        (1, 4, "4 GPU(s) ("),
        (1, 8, "8 GPU(s) ("),
        (2, 4, ""),
        (0, 8, ""),
        # Not the number that means it.
        (1, ALL_GPUS, "all the GPUs that tests ask for ("),
    ],
)
def test_a_promise_holds_for_worlds_that_fit_it(gpus_per_rank: int, count: int | None, expected: str) -> None:
    """If this fails, a CPU world, or one larger than the promise, fails instead of being skipped."""
    spec = _spec("nccl", GpuNeeds("nccl", gpus_per_rank, promised=count))
    assert bool(spec.promises(4)) is bool(expected)
    assert promised(spec, 4).startswith(expected)
    assert GpuNeeds("nccl", gpus_per_rank).of(4) == 4 * gpus_per_rank
