"""From observations to a status: a pure function."""

from __future__ import annotations

import pytest

from dist_testing.case import Case, CaseBody, CaseResult
from dist_testing.conformance.cell import Cell, Observation, Seen, Status
from dist_testing.conformance.judge import judge
from dist_testing.outcomes import Kind, RankOutcome, verdict

CELL = Cell("6.1", "all_reduce", 2)
LIMIT_S = 5.0


def result_of(*outcomes: RankOutcome) -> CaseResult:
    """Return what the engine found."""
    case = Case(CELL.name, len(outcomes), CaseBody("conformance"), LIMIT_S, "pool")
    return CaseResult(case, verdict(outcomes, world_size=len(outcomes)), outcomes, 0.0, 0.25, LIMIT_S)


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
