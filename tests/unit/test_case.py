"""The result of a case: its own failures, and whether an expected failure can cover them."""

from __future__ import annotations

import pytest

from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Kind, RankOutcome, Status
from tests.support.results import result_of

_RAISED = RankOutcome(0, Kind.RAISED, 1.0, types="builtins.ValueError")
_PASSED = RankOutcome(1, Kind.PASSED)


def test_failures_come_from_all_ranks() -> None:
    """If this fails, a test passes as an expected failure although another rank raised a different error."""
    teardown = RankOutcome(0, Kind.RAISED, 1.0, "teardown", types="builtins.OSError")
    of_the_peer = RankOutcome(0, Kind.RAISED, 1.0, "teardown", collateral="lost")
    first = RankOutcome(0, Kind.RAISED, 1.0, further=(teardown, of_the_peer))
    second = RankOutcome(1, Kind.RAISED, 2.0, types="builtins.KeyError")
    victim = RankOutcome(2, Kind.RAISED, 0.5, collateral="lost")
    assert result_of([first, second, victim]).failures == [first, teardown, second]


@pytest.mark.parametrize(
    ("result", "is_expectable"),
    [
        (result_of([_RAISED, _PASSED]), True),
        (result_of([_RAISED, RankOutcome(1, Kind.RAISED, 2.0)]), True),
        (result_of([_RAISED, RankOutcome(1, Kind.STOPPED, 2.0)]), True),
        # Another rank crashed a moment later.
        (result_of([_RAISED, RankOutcome(1, Kind.EXITED, 2.0, exit_code=3)]), False),
        (result_of([_RAISED, RankOutcome(1, Kind.SIGNALLED, 2.0, signal=11)]), False),
        # The test leaves processes or memory behind.
        (result_of([_RAISED, _PASSED], leaked=("what is left",)), False),
        (result_of([_RAISED, _PASSED], left=("what is left",)), False),
        # Nothing has failed.
        (result_of([RankOutcome(0, Kind.PASSED)]), False),
        (result_of([RankOutcome(0, Kind.SKIPPED, reason="none")]), False),
    ],
)
def test_only_exceptions_can_be_expected(result: CaseResult, is_expectable: bool) -> None:
    """If this fails, an expected failure hides a crash or what a test leaves behind, or covers a pass."""
    assert result.has_only_raised is is_expectable
    assert bool(result.failures) is (result.verdict.status is Status.FAILED)
    assert ("what is left" in failure_report(result)) is bool(result.leaked or result.left)
