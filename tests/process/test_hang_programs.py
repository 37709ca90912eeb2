"""Random programs of collectives on real ranks: a correct one is never stopped, and one with a fault always is.

The limit of each case is 300 seconds, so that a fault that is not found would take the time of the whole test.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.outcomes import Cause, Status, Verdict
from tests.support.random_programs import FAULTS, MIXED_FAULTS, program, run_correct, run_faulty, with_fault
from tests.support.worlds import engine_for, run

# Small, for every run; a stress run sets a thousand.
_STRESS = int(os.environ.get("DIST_TESTING_STRESS_CASES", "0"))
_CORRECT = 2 * _STRESS or 24
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

    def is_right(found: Verdict) -> bool:
        return found.cause is Cause.HANG and found.is_proven

    _check_planted(engine, FAULTS, _STRESS or len(FAULTS), is_right)


def test_planted_faults_of_all_kinds_are_explained(engine: Engine) -> None:
    """If this fails, a report blames a rank for what it got from another one.

    Some of the faults do no harm to the data of this backend: the case then fails because its calls are compared.
    """

    def is_right(found: Verdict) -> bool:
        return found.status is Status.FAILED

    _check_planted(engine, MIXED_FAULTS, _STRESS or len(MIXED_FAULTS), is_right, strict_calls=True)


def _check_planted(
    engine: Engine, faults: Sequence[str], count: int, is_right: Callable[[Verdict], bool], **more: bool
) -> None:
    """Run programs with a fault each; every verdict must be right, and the rank with the fault named."""
    wrong = []
    counts: Counter[str] = Counter()
    seed = _SEED
    for number in range(count):
        planted = None
        while planted is None:
            seed += 1
            planted = with_fault(program(seed, is_quick=True), faults[number % len(faults)])
        fault = planted.fault
        assert fault is not None
        arguments = {"seed": planted.seed, "fault": fault.kind}
        result = run(engine, "faulty", world_size=planted.size, timeout_s=_LIMIT_S, arguments=arguments, **more)
        found = result.verdict
        named = found.suspects or ((found.culprit,) if found.culprit is not None else ())
        if not is_right(found) or fault.rank not in named:
            wrong.append(f"{fault}: {failure_report(result)}\n{planted}")
        counts[f"{fault.kind}: {found.cause.value}, one of {len(named)} rank(s)"] += 1
    print("\n".join(f"{name}: {number}" for name, number in sorted(counts.items())))
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:_SHOWN])
