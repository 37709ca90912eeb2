"""The result of a case: what failed by itself, and whether an expected failure can be meant by it."""

from __future__ import annotations

import pytest

from dist_testing.case import Case, CaseBody, CaseResult
from dist_testing.outcomes import Kind, RankOutcome, verdict

_RAISED = RankOutcome(0, Kind.RAISED, 1.0, types="builtins.ValueError")
_PASSED = RankOutcome(1, Kind.PASSED)


def _result(*outcomes: RankOutcome) -> CaseResult:
    judged = verdict(outcomes, world_size=len(outcomes))
    return CaseResult(Case("test_it", len(outcomes), CaseBody("pytest"), 60.0), judged, outcomes, 0.0, 1.0, 60.0)


def test_failures_are_those_of_all_ranks() -> None:
    """The first to fail may be the expected one by chance; what others raise must be expected, too."""
    teardown = RankOutcome(0, Kind.RAISED, 1.0, "teardown", types="builtins.OSError")
    of_the_peer = RankOutcome(0, Kind.RAISED, 1.0, "teardown", collateral="lost")
    first = RankOutcome(0, Kind.RAISED, 1.0, further=(teardown, of_the_peer))
    second = RankOutcome(1, Kind.RAISED, 2.0, types="builtins.KeyError")
    victim = RankOutcome(2, Kind.RAISED, 0.5, collateral="lost")
    assert _result(first, second, victim).failures == [first, teardown, second]


@pytest.mark.parametrize(
    ("other", "is_expectable"),
    [
        (_PASSED, True),
        (RankOutcome(1, Kind.RAISED, 2.0), True),
        (RankOutcome(1, Kind.STOPPED, 2.0), True),
        (RankOutcome(1, Kind.EXITED, 2.0, exit_code=3), False),
        (RankOutcome(1, Kind.SIGNALLED, 2.0, signal=11), False),
    ],
)
def test_only_exceptions_can_be_expected(other: RankOutcome, is_expectable: bool) -> None:
    """A rank that crashes a moment after another has failed as expected would go unseen."""
    assert _result(_RAISED, other).has_only_raised is is_expectable


@pytest.mark.parametrize("outcome", [RankOutcome(0, Kind.PASSED), RankOutcome(0, Kind.SKIPPED, reason="none")])
def test_what_has_not_failed_has_no_failures(outcome: RankOutcome) -> None:
    """An expected failure that has not come is judged otherwise."""
    result = _result(outcome)
    assert (result.failures, result.has_only_raised) == ([], False)
