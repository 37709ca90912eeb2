"""The result of a case: its own failures, and whether an expected failure can cover them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.outcomes import Kind, RankOutcome
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
    """If this fails, an expected failure hides that another rank crashed a moment later."""
    assert result_of([_RAISED, other]).has_only_raised is is_expectable


@pytest.mark.parametrize("left", [{"leaked": ("sleep 1000 (pid 3)",)}, {"left": ("GPU 0: 3 GiB",)}])
def test_leftovers_are_not_expected(left: dict[str, Any]) -> None:
    """If this fails, an expected failure hides processes or memory that the test leaves behind."""
    result = dataclasses.replace(result_of([_RAISED, _PASSED]), **left)
    assert not result.has_only_raised
    assert next(iter(left.values()))[0] in failure_report(result)


@pytest.mark.parametrize("outcome", [RankOutcome(0, Kind.PASSED), RankOutcome(0, Kind.SKIPPED, reason="none")])
def test_a_case_that_did_not_fail_has_no_failures(outcome: RankOutcome) -> None:
    """If this fails, a case that passed or skipped counts as an expected failure."""
    result = result_of([outcome])
    assert (result.failures, result.has_only_raised) == ([], False)
