"""Random programs of collectives on real ranks: a correct one is never stopped, and one with a fault always is.

The limit of each case is 300 seconds, so that a fault that is not found would take the time of the whole test.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.outcomes import Cause, Status
from tests.support.program_ranks import run_correct, run_faulty
from tests.support.random_programs import FAULTS, Program, program, with_fault
from tests.support.worlds import engine_for, run

# Small, for every run; a stress run sets a thousand.
_STRESS = int(os.environ.get("DIST_TESTING_STRESS_CASES", "0"))
_CORRECT = 2 * _STRESS or 24
_FAULTY = _STRESS or len(FAULTS)
# Bazel sets the variable with --runs_per_test. All other runs use one seed, so that a failure repeats.
_SEED = 1_000_000 * int(os.environ.get("TEST_RANDOM_SEED", "1"))
_PROGRAMS_PER_CASE = 10
_LIMIT_S = 300.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all cases: each gets ranks of its own."""
    with engine_for({"correct": run_correct, "faulty": run_faulty}) as engine:
        yield engine


def test_correct_programs_are_never_stopped(engine: Engine) -> None:
    """A false alarm would be worse than any wait: a correct test that fails when the machine is busy."""
    by_size: dict[int, list[int]] = {}
    for seed in range(_SEED, _SEED + _CORRECT):
        by_size.setdefault(program(seed).size, []).append(seed)
    for size, seeds in by_size.items():
        for first in range(0, len(seeds), _PROGRAMS_PER_CASE):
            some = seeds[first : first + _PROGRAMS_PER_CASE]
            result = run(engine, "correct", world_size=size, timeout_s=_LIMIT_S, arguments={"seeds": some})
            assert result.verdict.status is Status.PASSED, f"seeds {some}: {failure_report(result)}"


def test_planted_faults_are_found(engine: Engine) -> None:
    """If this fails, a user waits for a limit, or is told of an innocent rank.

    Where two ranks differ and no third one shows which of them is right, both are suspects.
    """
    wrong = []
    counts: Counter[str] = Counter()
    for planted in _planted(_FAULTY):
        fault = planted.fault
        assert fault is not None
        result = run(
            engine,
            "faulty",
            world_size=planted.size,
            timeout_s=_LIMIT_S,
            arguments={"seed": planted.seed, "fault": fault.kind},
        )
        found = result.verdict
        named = (found.culprit,) if found.culprit is not None else found.suspects
        if found.cause is not Cause.HANG or not found.is_proven or fault.rank not in named:
            wrong.append(f"{planted}: {failure_report(result)}")
        counts[f"{fault.kind}: one of {len(named)} rank(s)"] += 1
    print("\n".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    assert not wrong, f"{len(wrong)} of {_FAULTY}:\n" + "\n".join(wrong[:5])


def _planted(count: int) -> Iterator[Program]:
    seed = _SEED
    for number in range(count):
        found = None
        while found is None:
            seed += 1
            found = with_fault(program(seed, is_quick=True), FAULTS[number % len(FAULTS)])
        yield found
