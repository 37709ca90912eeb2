"""From observations to a status: a pure function."""

from __future__ import annotations

import pytest

from dist_testing.conformance.cell import Cell, Observation, Seen, Status
from dist_testing.conformance.judge import judge
from dist_testing.core.ground.case import Case, CaseBody, CaseResult
from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, Verdict, verdict
from dist_testing.core.ground.outcomes import Status as OutcomeStatus

CELL = Cell("6.1", "all_reduce", 2)
LIMIT_S = 5.0


def result_of(*outcomes: RankOutcome) -> CaseResult:
    """Return what the engine found."""
    case = Case(CELL.name, len(outcomes), CaseBody("conformance"), LIMIT_S, "pool")
    return CaseResult(case, verdict(outcomes), outcomes, 0.0, 0.25, LIMIT_S)


PASSED = result_of(RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.PASSED))


def seen(*every: Seen, text: str = "boom", seconds: float = 0.1) -> dict[int, Observation]:
    """Return what the ranks observed."""
    return {rank: Observation(rank, one, text, seconds) for rank, one in enumerate(every)}


@pytest.mark.parametrize(
    ("observed", "status"),
    [
        (seen(Seen.RIGHT, Seen.RIGHT), Status.WORKS),
        (seen(Seen.ERROR, Seen.ERROR), Status.REFUSES),
        (seen(Seen.ERROR, Seen.RIGHT), Status.WRONG),
        (seen(Seen.WRONG, Seen.RIGHT), Status.WRONG),
        (seen(Seen.WRONG, Seen.ERROR), Status.WRONG),
        (seen(Seen.ERROR, Seen.ERROR, seconds=4.5), Status.HANGS),
        (seen(Seen.ABSENT, Seen.ABSENT), Status.NOT_RUN),
    ],
)
def test_observations(observed: dict[int, Observation], status: Status) -> None:
    """Clean errors on every rank are a refusal; on some ranks they are wrong; late ones are a hang."""
    assert judge(CELL, PASSED, observed, LIMIT_S).status is status


def test_a_signal_is_a_crash() -> None:
    """Also if the other rank saw the right thing."""
    result = result_of(RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.SIGNALLED, signal=11))
    found = judge(CELL, result, seen(Seen.RIGHT), LIMIT_S)
    assert (found.status, found.detail) == (Status.CRASHES, "rank 1: SIGSEGV (11)")


def test_a_hang_names_who_waits_where() -> None:
    """By the collective ledger."""
    result = result_of(
        RankOutcome(0, Kind.HUNG, operation="all_reduce"), RankOutcome(1, Kind.HUNG, operation="broadcast")
    )
    found = judge(CELL, result, {}, LIMIT_S)
    assert (found.status, found.detail) == (Status.HANGS, "rank(s) 0 in all_reduce; rank(s) 1 in broadcast")


def test_a_rank_that_does_not_survive_its_cell_is_wrong() -> None:
    """Every rank saw the right thing, and one failed afterwards."""
    result = result_of(RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.RAISED, summary="ValueError: later"))
    assert judge(CELL, result, seen(Seen.RIGHT, Seen.RIGHT), LIMIT_S).status is Status.WRONG


def test_ranks_outside_of_the_group_have_nothing_to_refuse() -> None:
    """A refusal by all members counts as one."""
    cell = Cell("6.1", "all_reduce", 2, group="single")
    assert judge(cell, PASSED, seen(Seen.RIGHT, Seen.ERROR), LIMIT_S).status is Status.REFUSES


def test_late_errors_are_hangs_from_a_share_of_the_limit() -> None:
    """From 0.6 of the limit on; the text says so."""
    for seconds, status in ((0.6 * LIMIT_S, Status.HANGS), (0.59 * LIMIT_S, Status.REFUSES)):
        found = judge(CELL, PASSED, seen(Seen.ERROR, Seen.ERROR, seconds=seconds), LIMIT_S)
        assert found.status is status
    late = judge(CELL, PASSED, seen(Seen.ERROR, Seen.ERROR, seconds=4), LIMIT_S)
    assert late.detail == "until the limit of the group: rank(s) 0, 1: boom"
    one_late = {0: Observation(0, Seen.ERROR, "boom", 0.1), 1: Observation(1, Seen.ERROR, "boom", 4.0)}
    assert judge(CELL, PASSED, one_late, LIMIT_S).detail == "until the limit of the group: rank(s) 1: boom"


def test_texts_name_their_ranks() -> None:
    """One text with all its ranks, and the number of other texts."""
    refused = judge(CELL, PASSED, seen(Seen.ERROR, Seen.ERROR), LIMIT_S)
    assert refused.detail == "rank(s) 0, 1: boom"
    observed = {0: Observation(0, Seen.WRONG, "one"), 1: Observation(1, Seen.WRONG, "other")}
    assert judge(CELL, PASSED, observed, LIMIT_S).detail == "rank(s) 0: one (1 other text(s))"
    some = judge(CELL, PASSED, seen(Seen.ERROR, Seen.RIGHT), LIMIT_S)
    assert some.detail == "only some ranks refuse: rank(s) 0: boom"
    absent = {0: Observation(0, Seen.ABSENT, "no name"), 1: Observation(1, Seen.RIGHT, "")}
    assert judge(CELL, PASSED, absent, LIMIT_S).detail == "no name"
    assert judge(CELL, PASSED, seen(Seen.RIGHT, Seen.RIGHT, text=""), LIMIT_S).detail == ""


def test_an_exit_is_a_crash_with_its_code() -> None:
    """Each rank that ended by itself, and none that went down with another."""
    result = result_of(
        RankOutcome(0, Kind.EXITED, exit_code=3),
        RankOutcome(1, Kind.SIGNALLED, signal=6),
        RankOutcome(2, Kind.SIGNALLED, signal=9, collateral="lost"),
    )
    found = judge(CELL, result, {}, LIMIT_S)
    assert (found.status, found.detail) == (Status.CRASHES, "rank 0: exit code 3; rank 1: SIGABRT (6)")
    assert found.seconds == 0.25


def test_ranks_without_an_observation() -> None:
    """A failure of the rank itself is wrong, with its text; a rank that was stopped has hung."""
    broken = RankOutcome(1, Kind.RAISED, summary="ValueError: later")
    found = judge(CELL, result_of(RankOutcome(0, Kind.PASSED), broken), seen(Seen.RIGHT), LIMIT_S)
    assert (found.status, found.seconds) == (Status.WRONG, 0.25)
    assert found.detail == "rank(s) 1 did not come to the end of the cell: ValueError: later"
    both = result_of(RankOutcome(0, Kind.RAISED, summary="boom"), RankOutcome(1, Kind.RAISED, summary="boom"))
    assert judge(CELL, both, {}, LIMIT_S).detail == "rank(s) 0, 1 did not come to the end of the cell: boom"
    other = result_of(RankOutcome(0, Kind.RAISED, summary="one"), RankOutcome(1, Kind.RAISED, summary="two"))
    assert judge(CELL, other, {}, LIMIT_S).detail.endswith(": one; two")
    silent = result_of(RankOutcome(0, Kind.RAISED, summary="one"), RankOutcome(1, Kind.UNREADABLE))
    assert judge(CELL, silent, {}, LIMIT_S).detail.endswith(": one")
    waiting = result_of(RankOutcome(0, Kind.HUNG, operation="send"), RankOutcome(1, Kind.HUNG, operation="send"))
    assert judge(CELL, waiting, {}, LIMIT_S).detail == "rank(s) 0, 1 in send"
    silent = result_of(RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.UNREADABLE))
    assert judge(CELL, silent, seen(Seen.RIGHT), LIMIT_S).detail == "rank(s) 1 did not come to the end of the cell: "
    for kind in (Kind.HUNG, Kind.STOPPED):
        stopped = result_of(RankOutcome(0, Kind.PASSED), RankOutcome(1, kind, phase="init"))
        hung = judge(CELL, stopped, seen(Seen.RIGHT), LIMIT_S)
        assert (hung.status, hung.detail, hung.seconds) == (Status.HANGS, "rank(s) 1 in init", 0.25)
        beside = result_of(RankOutcome(0, Kind.RAISED, summary="boom"), RankOutcome(1, kind, phase="init"))
        assert judge(CELL, beside, {}, LIMIT_S).status is Status.HANGS


def test_whether_the_group_lives_on() -> None:
    """Not asked after right results; else every rank must say so."""
    assert judge(CELL, PASSED, seen(Seen.RIGHT, Seen.RIGHT), LIMIT_S).lives is None
    assert judge(CELL, PASSED, seen(Seen.ERROR, Seen.ERROR), LIMIT_S).lives is True
    assert judge(CELL, PASSED, seen(Seen.ERROR, Seen.RIGHT), LIMIT_S).lives is True
    broken = {0: Observation(0, Seen.ERROR, "boom"), 1: Observation(1, Seen.ERROR, "boom", lives=False)}
    assert judge(CELL, PASSED, broken, LIMIT_S).lives is False


def test_trouble_after_a_right_cell() -> None:
    """It is told with the runner's reason, and the group is dead; an interrupted run is no trouble of the cell."""
    failed = result_of(RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.RAISED, summary="ValueError: later"))
    found = judge(CELL, failed, seen(Seen.RIGHT, Seen.RIGHT), LIMIT_S)
    assert found.detail == f"after the cell: {failed.verdict.reason}"
    assert failed.verdict.reason
    assert found.lives is False
    interrupted = CaseResult(
        failed.case, Verdict(OutcomeStatus.FAILED, Cause.INTERRUPTED), failed.outcomes, 0.0, 0.25, 5.0
    )
    assert judge(CELL, interrupted, seen(Seen.RIGHT, Seen.RIGHT), LIMIT_S).status is Status.WORKS
