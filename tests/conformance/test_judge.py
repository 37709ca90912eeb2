"""From observations to a status: a pure function."""

from __future__ import annotations

import dataclasses

import pytest

from dist_testing.conformance.cell import Cell, Observation, Seen, Status
from dist_testing.conformance.judge import judge
from dist_testing.conformance.kit import first_line
from dist_testing.core.ground.case import Case, CaseBody, CaseResult
from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, Verdict, verdict
from dist_testing.core.ground.outcomes import Status as OutcomeStatus

CELL = Cell("6.1", "all_reduce", 2)
LIMIT_S = 5.0
RIGHT, ERROR, WRONG, ABSENT = Seen.RIGHT, Seen.ERROR, Seen.WRONG, Seen.ABSENT


def result_of(*outcomes: RankOutcome) -> CaseResult:
    """Return what the engine found."""
    case = Case(CELL.name, len(outcomes), CaseBody("conformance"), LIMIT_S, "pool")
    return CaseResult(case, verdict(outcomes), outcomes, 0.0, 0.25, LIMIT_S)


def raised(rank: int, summary: str) -> RankOutcome:
    """Return the outcome of a rank that did not come to its end."""
    return RankOutcome(rank, Kind.RAISED, summary=summary)


def hung(rank: int, operation: str) -> RankOutcome:
    """Return the outcome of a rank that waits in an operation."""
    return RankOutcome(rank, Kind.HUNG, operation=operation)


FINE = RankOutcome(0, Kind.PASSED)
PASSED = result_of(FINE, RankOutcome(1, Kind.PASSED))
LATER = result_of(FINE, raised(1, "ValueError: later"))


def seen(*every: Seen, text: str = "boom", seconds: float = 0.1) -> dict[int, Observation]:
    """Return what the ranks observed."""
    return {rank: Observation(rank, one, text, seconds) for rank, one in enumerate(every)}


@pytest.mark.parametrize(
    ("observed", "status", "detail", "lives"),
    [
        (seen(RIGHT, RIGHT, text=""), Status.WORKS, "", None),
        (seen(ERROR, ERROR), Status.REFUSES, "rank(s) 0, 1: boom", True),
        # Clean errors on some ranks are wrong.
        (seen(ERROR, RIGHT), Status.WRONG, "only some ranks refuse: rank(s) 0: boom", True),
        (seen(WRONG, RIGHT), Status.WRONG, "rank(s) 0: boom", True),
        (seen(WRONG, ERROR), Status.WRONG, "rank(s) 0: boom", True),
        (
            {0: Observation(0, WRONG, "one"), 1: Observation(1, WRONG, "other")},
            Status.WRONG,
            "rank(s) 0: one (1 other text(s))",
            True,
        ),
        (seen(ABSENT, ABSENT), Status.NOT_RUN, "boom", True),
        ({0: Observation(0, ABSENT, "no name"), 1: Observation(1, RIGHT, "")}, Status.NOT_RUN, "no name", True),
        # Late errors are hangs, from 0.6 of the limit on; the text names the late ranks.
        (seen(ERROR, ERROR, seconds=0.59 * LIMIT_S), Status.REFUSES, "rank(s) 0, 1: boom", True),
        (
            seen(ERROR, ERROR, seconds=0.6 * LIMIT_S),
            Status.HANGS,
            "until the limit of the group: rank(s) 0, 1: boom",
            True,
        ),
        (
            {0: Observation(0, ERROR, "boom", 0.1), 1: Observation(1, ERROR, "boom", 4.0, lives=False)},
            Status.HANGS,
            "until the limit of the group: rank(s) 1: boom",
            False,
        ),
    ],
)
def test_observations(observed: dict[int, Observation], status: Status, detail: str, lives: bool | None) -> None:
    """If this fails, the matrix says something else than the ranks saw, or that a dead group lives."""
    found = judge(CELL, PASSED, observed, LIMIT_S)
    assert (found.status, found.detail, found.lives, found.seconds) == (status, detail, lives, 0.25)


@pytest.mark.parametrize(
    ("outcomes", "status", "detail"),
    [
        ((FINE, RankOutcome(1, Kind.SIGNALLED, signal=11)), Status.CRASHES, "rank 1: SIGSEGV (11)"),
        # Each rank that ended by itself, and none that went down with another.
        (
            (
                RankOutcome(0, Kind.EXITED, exit_code=3),
                RankOutcome(1, Kind.SIGNALLED, signal=6),
                RankOutcome(2, Kind.SIGNALLED, signal=9, collateral="lost"),
            ),
            Status.CRASHES,
            "rank 0: exit code 3; rank 1: SIGABRT (6)",
        ),
        # Who waits where, by the collective ledger.
        (
            (hung(0, "all_reduce"), hung(1, "broadcast")),
            Status.HANGS,
            "rank(s) 0 in all_reduce; rank(s) 1 in broadcast",
        ),
        ((hung(0, "send"), hung(1, "send")), Status.HANGS, "rank(s) 0, 1 in send"),
        ((FINE, RankOutcome(1, Kind.HUNG, phase="init")), Status.HANGS, "rank(s) 1 in init"),
        ((FINE, RankOutcome(1, Kind.STOPPED, phase="init")), Status.HANGS, "rank(s) 1 in init"),
        ((raised(0, "boom"), hung(1, "send")), Status.HANGS, "rank(s) 0 in call; rank(s) 1 in send"),
        (
            (raised(0, "boom"), RankOutcome(1, Kind.STOPPED, phase="init")),
            Status.HANGS,
            "rank(s) 0 in call; rank(s) 1 in init",
        ),
        # A failure of the rank itself is wrong, with its text.
        (LATER.outcomes, Status.WRONG, "rank(s) 1 did not come to the end of the cell: ValueError: later"),
        ((raised(0, "a"), raised(1, "a")), Status.WRONG, "rank(s) 0, 1 did not come to the end of the cell: a"),
        ((raised(0, "a"), raised(1, "b")), Status.WRONG, "rank(s) 0, 1 did not come to the end of the cell: a; b"),
        (
            (raised(0, "a"), RankOutcome(1, Kind.UNREADABLE)),
            Status.WRONG,
            "rank(s) 0, 1 did not come to the end of the cell: a",
        ),
        ((FINE, RankOutcome(1, Kind.UNREADABLE)), Status.WRONG, "rank(s) 1 did not come to the end of the cell: "),
    ],
)
def test_ranks_without_an_observation(outcomes: tuple[RankOutcome, ...], status: Status, detail: str) -> None:
    """If this fails, a crash or a hang is called something else, or the text names another rank than it should."""
    observed = seen(RIGHT) if outcomes[0] is FINE else {}
    found = judge(CELL, result_of(*outcomes), observed, LIMIT_S)
    assert (found.status, found.detail, found.seconds) == (status, detail, 0.25)


def test_ranks_outside_of_the_group_have_nothing_to_refuse() -> None:
    """A refusal by all members counts as one."""
    cell = Cell("6.1", "all_reduce", 2, group="single")
    assert judge(cell, PASSED, seen(RIGHT, ERROR), LIMIT_S).status is Status.REFUSES


def test_trouble_after_a_right_cell() -> None:
    """It is told with the runner's reason, and the group is dead; an interrupted run is no trouble of the cell."""
    found = judge(CELL, LATER, seen(RIGHT, RIGHT), LIMIT_S)
    assert (found.status, found.detail) == (Status.WRONG, f"after the cell: {LATER.verdict.reason}")
    assert LATER.verdict.reason
    assert found.lives is False
    interrupted = dataclasses.replace(LATER, verdict=Verdict(OutcomeStatus.FAILED, Cause.INTERRUPTED))
    assert judge(CELL, interrupted, seen(RIGHT, RIGHT), LIMIT_S).status is Status.WORKS


def test_the_line_of_an_error_can_be_written() -> None:
    """If this fails, one error text with bytes that are no UTF-8 keeps the whole matrix from being written."""
    assert first_line(RuntimeError("[rank0]: no file a\udcff\nsecond line")) == "no file a\\udcff"
