"""Random faults: for any fault on any rank, the verdict is right and the runner is unchanged."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.ground.outcomes import Cause, Kind, Status
from tests.support.faults import ENDS, FAULTS
from tests.support.worlds import alive, engine_for, run

# Small, for every run; a stress run sets a thousand.
_CASES = int(os.environ.get("DIST_TESTING_STRESS_CASES", "40"))
# Bazel sets the variable with --runs_per_test. All other runs use one seed, so that a failure repeats.
_SEED = int(os.environ.get("TEST_RANDOM_SEED", "1"))
# Limits in seconds, one after the other, of a case that must reach its deadline: a busy machine may reach the first one
# before its ranks come to the fault.
_DEADLINES_S = (1.5, 12.0, 96.0)


@dataclass(frozen=True, slots=True)
class _Expected:
    """The expected verdict.

    Attributes:
        cause: Why the case fails; `Cause.NONE` if it passes or is skipped.
        blames: Whether the rank with the fault is the culprit.
        alone: The cause in a world of one, if it differs.
    """

    cause: Cause
    blames: bool = True
    alone: Cause | None = None


_HANG = _Expected(Cause.HANG)
_LEAK = _Expected(Cause.LEAK, blames=False)
_NONE = _Expected(Cause.NONE, blames=False)
_EXPECTED = {
    **{fault: _Expected(end.cause) for fault, end in ENDS.items()},
    "close descriptors": _Expected(Cause.CRASH),
    "fork": _NONE,
    "fork twice": _LEAK,
    "hang in destroy": _HANG,
    "keep a thread": _NONE,
    "leave a session": _LEAK,
    "leave a thread": _LEAK,
    "loop with GIL": _HANG,
    "nothing": _NONE,
    # In a world of one, all ranks skip.
    "skip": _Expected(Cause.DISAGREEMENT, blames=False, alone=Cause.NONE),
    "sleep": _HANG,
    "stop": _HANG,
}
# These faults end at the deadline, which takes that time.
_SLOW = frozenset({"hang in destroy", "loop with GIL", "sleep", "stop"})
# A forked child that also returns from the test must not meet another rank in a collective.
_WITHOUT_PEERS = frozenset({"fork", "hang in destroy", "keep a thread"})


def _one_fails(world: World, body: dict[str, Any]) -> None:
    dist.barrier()
    if world.rank == body["rank"] and body["fault"] != "nothing":
        FAULTS[body["fault"]](world)
    if body["peers"] == "collective":
        dist.all_reduce(torch.ones(4))


def _belongings() -> dict[str, frozenset[str]]:
    """Return the runner's open files, threads and shared memory segments."""
    itself = psutil.Process()
    return {
        "descriptors": frozenset(os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()),
        "threads": frozenset(str(thread.id) for thread in itself.threads()),
        "segments": frozenset(area.path for area in itself.memory_maps() if area.path.startswith("/dev/shm")),
    }


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all cases, which checks at its end that nothing is left."""
    with engine_for({"one fails": _one_fails}) as engine:
        yield engine


def test_every_fault_has_an_expectation() -> None:
    """If this fails, a new fault is never drawn."""
    assert set(FAULTS) - {"wait for a missing message"} == set(_EXPECTED) - {"nothing"}


def test_random_faults_get_the_right_verdict(engine: Engine) -> None:
    """If this fails, a platform team cannot trust a red or a green result."""
    chance = random.Random(_SEED)
    print(f"seed {_SEED}: TEST_RANDOM_SEED={_SEED} repeats this run")
    others = set(psutil.Process().children(recursive=True))
    wrong = []
    before: dict[str, frozenset[str]] = {}
    for number in range(_CASES):
        # A hang takes its whole deadline, so only one case in eight is one.
        fault = chance.choice(sorted(_SLOW if chance.random() < 0.125 else _EXPECTED.keys() - _SLOW))
        size = chance.randint(1, 4)
        rank = chance.randrange(size)
        peers = "done" if fault in _WITHOUT_PEERS else chance.choice(["collective", "done"])
        expected = _EXPECTED[fault]
        cause = expected.alone if size == 1 and expected.alone else expected.cause
        culprit = rank if expected.blames else None
        skipped = fault == "skip" and size == 1
        status = Status.SKIPPED if skipped else Status.PASSED if cause is Cause.NONE else Status.FAILED
        for timeout_s in _DEADLINES_S if fault in _SLOW else (60.0,):
            result = run(
                engine,
                "one fails",
                world_size=size,
                timeout_s=timeout_s,
                arguments={"fault": fault, "rank": rank, "peers": peers},
            )
            got = result.verdict
            is_right = (got.status, got.cause, got.culprit) == (status, cause, culprit)
            if is_right:
                break
        if not is_right:
            wrong.append(f"case {number}: {fault} on rank {rank} of {size}, peers {peers}: {got}, {result.outcomes}")
        if len(result.outcomes) != size or any(outcome.kind is Kind.NEVER_STARTED for outcome in result.outcomes):
            wrong.append(f"case {number}: {fault}: not every rank is accounted for: {result.outcomes}")
        orphans = [line for line in result.leaked if alive(int(line.rpartition("pid ")[2].partition(",")[0]))]
        assert not orphans, f"case {number}: {fault}: {orphans}"
        # The first case creates what stays for the run: the fork server, its socket, the folder.
        now = _belongings()
        before = before or now
        assert now == before, f"case {number}: {fault} left something in the runner"
    assert not wrong, "\n".join(wrong)
    started = set(psutil.Process().children(recursive=True)) - others
    assert len(started) == 1, f"besides the fork server: {started}"
