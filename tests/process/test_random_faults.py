"""Random faults: for any fault on any rank, the verdict is right and the runner is unchanged."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.ground.outcomes import Cause, Kind, Status
from tests.support.faults import ENDS, FAULTS, OTHER_ENDS, OtherEnd, one_fails
from tests.support.worlds import alive, engine_for, run

# Small, for every run; a stress run sets a thousand.
_CASES = int(os.environ.get("DIST_TESTING_STRESS_CASES", "40"))
# Bazel sets the variable with --runs_per_test. All other runs use one seed, so that a failure repeats.
_SEED = int(os.environ.get("TEST_RANDOM_SEED", "1"))
# Limits in seconds, one after the other, of a case that must reach its deadline: a busy machine may reach the first one
# before its ranks come to the fault.
_DEADLINES_S = (1.5, 12.0, 96.0)


_ENDS = {**{fault: OtherEnd(end.cause, is_culprit=True) for fault, end in ENDS.items()}, **OTHER_ENDS}
_SLOW = sorted(fault for fault, end in _ENDS.items() if end.is_slow)


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
    with engine_for({"one fails": one_fails}) as engine:
        yield engine


def test_every_fault_has_an_expectation() -> None:
    """If this fails, a new fault is never drawn."""
    assert FAULTS.keys() - {"wait for a missing message"} == _ENDS.keys()


def test_random_faults_get_the_right_verdict(engine: Engine) -> None:
    """If this fails, a platform team cannot trust a red or a green result."""
    chance = random.Random(_SEED)
    print(f"seed {_SEED}: TEST_RANDOM_SEED={_SEED} repeats this run")
    others = set(psutil.Process().children(recursive=True))
    wrong = []
    before: dict[str, frozenset[str]] = {}
    for number in range(_CASES):
        # A hang takes its whole deadline, so only one case in eight is one.
        fault = chance.choice(_SLOW if chance.random() < 0.125 else sorted(_ENDS.keys() - _SLOW))
        end = _ENDS[fault]
        size = chance.randint(1, 4)
        rank = chance.randrange(size)
        peers = chance.choice(["collective", "done"]) if end.meets_peers else "done"
        has_skipped = fault == "skip" and size == 1
        cause = Cause.NONE if has_skipped else end.cause
        passed = Status.SKIPPED if has_skipped else Status.PASSED
        expected = (passed if cause is Cause.NONE else Status.FAILED, cause, rank if end.is_culprit else None)
        for timeout_s in _DEADLINES_S if end.is_slow else (60.0,):
            result = run(
                engine,
                "one fails",
                world_size=size,
                timeout_s=timeout_s,
                arguments={"fault": fault, "rank": rank, "peers": peers},
            )
            got = result.verdict
            is_right = (got.status, got.cause, got.culprit) == expected
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
