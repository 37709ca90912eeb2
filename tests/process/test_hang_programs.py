"""Random programs of collectives on real ranks: a correct one is never stopped, and one with a fault always is.

The limit of each case is 300 seconds, so that a fault that is not found would take the time of the whole test.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.outcomes import Cause, Status
from tests.support.program_ranks import run_correct, run_faulty
from tests.support.random_programs import FAULTS, MIXED_FAULTS, Program, program, with_fault
from tests.support.worlds import engine_for, run

# Small, for every run; a stress run sets a thousand.
_STRESS = int(os.environ.get("DIST_TESTING_STRESS_CASES", "0"))
_CORRECT = 2 * _STRESS or 24
_FAULTY = _STRESS or len(FAULTS)
_MIXED = _STRESS or len(MIXED_FAULTS)
# Bazel sets the variable with --runs_per_test. All other runs use one seed, so that a failure repeats.
_SEED = 1_000_000 * int(os.environ.get("TEST_RANDOM_SEED", "1"))
_PROGRAMS_PER_CASE = 10
_LIMIT_S = 300.0
# Of wrong verdicts, in a failure.
_SHOWN = 12


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
            wrong.append(f"{fault}: {failure_report(result)}\n{planted}")
        counts[f"{fault.kind}: one of {len(named)} rank(s)"] += 1
    print("\n".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    assert not wrong, f"{len(wrong)} of {_FAULTY}:\n" + "\n".join(wrong[:_SHOWN])


def test_planted_faults_of_all_kinds_are_explained(engine: Engine) -> None:
    """If this fails, a report blames a rank for what it got from another one.

    Some of the faults do no harm to the data of this backend: the case then fails because its calls are compared.
    """
    wrong = []
    counts: Counter[str] = Counter()
    for planted in _planted(_MIXED, MIXED_FAULTS):
        fault = planted.fault
        assert fault is not None
        arguments = {"seed": planted.seed, "fault": fault.kind}
        result = run(
            engine,
            "faulty",
            world_size=planted.size,
            timeout_s=_LIMIT_S,
            arguments=arguments,
            strict_calls=True,
        )
        found = result.verdict
        named = {*found.suspects, *([] if found.culprit is None or found.suspects else [found.culprit])}
        if found.status is not Status.FAILED or fault.rank not in named:
            wrong.append(f"{fault}: {failure_report(result)}\n{planted}")
        counts[f"{fault.kind}: {found.cause.value}, one of {len(named)} rank(s)"] += 1
    print("\n".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    assert not wrong, f"{len(wrong)} of {_MIXED}:\n" + "\n".join(wrong[:_SHOWN])


def _planted(count: int, faults: Sequence[str] = FAULTS) -> Iterator[Program]:
    seed = _SEED
    for number in range(count):
        found = None
        while found is None:
            seed += 1
            found = with_fault(program(seed, is_quick=True), faults[number % len(faults)])
        yield found
