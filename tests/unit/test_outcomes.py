"""The verdict over every combination of outcomes, for worlds of one to four ranks.

The rules are written here a second time, in the words of the table of verdicts, and not taken from the code.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import (
    UNKNOWN_EXIT_CODE,
    Cause,
    Kind,
    RankOutcome,
    Status,
    Verdict,
    exit_name,
    verdict,
)
from dist_testing.core.ground.skips import TEST_SKIPS
from tests.support.results import result_of

HARDWARE = TEST_SKIPS["no_cuda"].message
OTHER = "needs a power of two"
LEAKS = ((), ("sleep 60 (pid 7)",))

# Every way in which a rank can end; whatever changes the verdict is a separate state.
STATES = (
    RankOutcome(0, Kind.PASSED),
    RankOutcome(0, Kind.SKIPPED, reason=HARDWARE),
    RankOutcome(0, Kind.SKIPPED, reason=OTHER),
    RankOutcome(0, Kind.RAISED, summary="ValueError: own"),
    RankOutcome(0, Kind.RAISED, summary="RuntimeError: Connection closed by peer", collateral="lost"),
    RankOutcome(0, Kind.RAISED, summary="RuntimeError: Timed out waiting", collateral="late"),
    RankOutcome(0, Kind.EXITED, exit_code=0),
    RankOutcome(0, Kind.SIGNALLED, signal=int(signal.SIGSEGV)),
    RankOutcome(0, Kind.HUNG),
    RankOutcome(0, Kind.STOPPED),
    RankOutcome(0, Kind.NEVER_STARTED),
    RankOutcome(0, Kind.UNREADABLE, summary="not JSON"),
)
CRASHES = {Kind.EXITED, Kind.SIGNALLED}
BROKEN_MACHINERY = {Kind.NEVER_STARTED, Kind.UNREADABLE}

# When each rank of a world ends: all orders of up to three distinct times over four ranks, including ties.
CLOCKS = tuple(itertools.product((1.0, 2.0, 3.0), repeat=4))

WORLDS = [
    pytest.param(size, first, id=f"{size}-{state.kind.name}{'-' * bool(state.collateral)}{state.collateral}{number}")
    for size in (1, 2, 3, 4)
    for number, state in enumerate(STATES)
    for first in [state]
]


def worlds(size: int, first: RankOutcome) -> Iterator[list[RankOutcome]]:
    """Yield every world of that size whose rank 0 ended as `first`; the clocks take turns."""
    clocks = itertools.cycle(CLOCKS)
    for states in itertools.product([first], *[STATES] * (size - 1)):
        clock = next(clocks)
        yield [replace(state, rank=rank, at_s=clock[rank]) for rank, state in enumerate(states)]


def is_unanimous_skip(outcomes: Sequence[RankOutcome]) -> bool:
    """Return whether all ranks skipped for one reason."""
    return all(o.kind is Kind.SKIPPED and o.reason == outcomes[0].reason for o in outcomes)


def expected_cause(outcomes: Sequence[RankOutcome], *, promised: bool, leaked: bool) -> set[Cause]:
    """Return the causes that the table allows; for a crash among failures the clock decides between two."""
    kinds = {outcome.kind for outcome in outcomes}
    if kinds & CRASHES or any(o.kind is Kind.RAISED and not o.collateral for o in outcomes):
        return {Cause.CRASH, Cause.FAILURE}
    if kinds & BROKEN_MACHINERY:
        return {Cause.INFRASTRUCTURE}
    if Kind.RAISED in kinds:
        return {Cause.HANG} if waited_for(outcomes) else {Cause.FAILURE}
    if Kind.HUNG in kinds:
        return {Cause.HANG}
    if Kind.SKIPPED in kinds and not is_unanimous_skip(outcomes):
        return {Cause.DISAGREEMENT}
    if Kind.STOPPED in kinds:
        return {Cause.INTERRUPTED}
    if leaked:
        return {Cause.LEAK}
    return {Cause.PROMISE} if promised and outcomes[0].reason == HARDWARE else {Cause.NONE}


def waited_for(outcomes: Sequence[RankOutcome]) -> list[RankOutcome]:
    """Return the missing ranks if the others only waited: the stuck ranks, else those that had ended the test."""
    if not any(outcome.collateral == "late" for outcome in outcomes):
        return []
    stuck = [outcome for outcome in outcomes if outcome.kind in (Kind.STOPPED, Kind.HUNG)]
    return stuck or [outcome for outcome in outcomes if outcome.kind in (Kind.PASSED, Kind.SKIPPED)]


@pytest.mark.parametrize(("size", "first"), WORLDS)
def test_the_verdict_on_every_world(size: int, first: RankOutcome) -> None:
    """If this fails, a rank that failed or skipped alone leaves the case green, or a victim is blamed for a crash."""
    for outcomes in worlds(size, first):
        assert_culprit_is_right(outcomes, verdict(outcomes))
        for leaked, promised in itertools.product(LEAKS, (False, True)):
            result = verdict(outcomes, promised=promised, leaked=leaked)
            assert result.cause in expected_cause(outcomes, promised=promised, leaked=bool(leaked)), outcomes
            missing = promised and outcomes[0].reason == HARDWARE
            if all(outcome.kind is Kind.PASSED for outcome in outcomes) and not leaked:
                assert result == Verdict(Status.PASSED), outcomes
            elif is_unanimous_skip(outcomes) and not leaked and not missing:
                assert result == Verdict(Status.SKIPPED, reason=outcomes[0].reason), outcomes
            else:
                assert result.status is Status.FAILED, outcomes
                assert result.reason, outcomes
            # Ranks end in any order.
            assert verdict(outcomes[::-1], promised=promised, leaked=leaked) == result


def assert_culprit_is_right(outcomes: Sequence[RankOutcome], result: Verdict) -> None:
    """Check the culprit, the other failing ranks and the victims against each rank's outcome."""
    by_kind: dict[Kind, list[RankOutcome]] = {kind: [o for o in outcomes if o.kind is kind] for kind in Kind}
    own = [o for o in outcomes if o.kind in CRASHES or (o.kind is Kind.RAISED and not o.collateral)]
    echoes = [outcome for outcome in by_kind[Kind.RAISED] if outcome.collateral]
    absent = [o for o in outcomes if o.kind in (Kind.HUNG, Kind.STOPPED)]
    machinery = by_kind[Kind.NEVER_STARTED] + by_kind[Kind.UNREADABLE]
    blamed = {result.culprit, *result.failing}
    victims = set(result.victims)

    assert len(result.failing) == len(set(result.failing))
    assert result.culprit not in result.failing
    assert not blamed & victims, outcomes
    assert not {outcome.rank for outcome in by_kind[Kind.PASSED]} & (blamed | victims), outcomes

    if echoes and absent and not own and not machinery and not waited_for(outcomes):
        # One of those that did not report may have closed the connection.
        assert (result.cause, result.culprit, result.failing) == (Cause.FAILURE, None, ()), outcomes
        assert victims == {echo.rank for echo in echoes}, outcomes
        assert all(str(outcome.rank) in result.reason for outcome in absent), outcomes
    elif own or (echoes and not machinery and not waited_for(outcomes)):
        candidates = own or echoes
        assert blamed == {outcome.rank for outcome in candidates}, outcomes
        culprit = next(outcome for outcome in candidates if outcome.rank == result.culprit)
        assert culprit.at_s == min(outcome.at_s for outcome in candidates), outcomes
        tied = [outcome for outcome in candidates if outcome.at_s == culprit.at_s]
        assert (culprit.kind in CRASHES) == any(outcome.kind in CRASHES for outcome in tied), outcomes
        assert result.cause is (Cause.CRASH if culprit.kind in CRASHES else Cause.FAILURE), outcomes
        times = [outcomes[rank].at_s for rank in result.failing]
        assert times == sorted(times), outcomes
        assert victims == {o.rank for o in absent + echoes} - blamed, outcomes
        assert f"rank {result.culprit} " in result.reason
    elif echoes and not machinery:
        missing = waited_for(outcomes)
        # A rank that passed before the others is not at fault.
        is_clear = len(missing) == 1 and missing[0].kind is not Kind.PASSED
        assert result.culprit == (missing[0].rank if is_clear else None), outcomes
        assert result.failing == ()
        assert victims == {echo.rank for echo in echoes}, outcomes
        assert all(str(outcome.rank) in result.reason for outcome in missing), outcomes
    elif machinery:
        assert blamed == {outcome.rank for outcome in machinery}, outcomes
        assert outcomes[result.culprit or 0].at_s == min(outcome.at_s for outcome in machinery), outcomes
        assert victims == {o.rank for o in absent + echoes}, outcomes
    elif hung := by_kind[Kind.HUNG]:
        assert result.culprit == (hung[0].rank if len(hung) == 1 else None), outcomes
        assert all(str(outcome.rank) in result.reason for outcome in hung), outcomes
    else:
        assert result.culprit is None, outcomes
        assert not result.failing, outcomes
        assert not result.victims, outcomes


def test_both_sides_of_a_disagreement_are_named() -> None:
    """If this fails, the user does not learn which ranks skipped and which did not."""
    outcomes = [
        RankOutcome(0, Kind.PASSED),
        RankOutcome(1, Kind.SKIPPED, reason=OTHER),
        RankOutcome(2, Kind.STOPPED, phase="call"),
    ]
    result = verdict(outcomes)
    for part in ("rank 0 passed", f"rank 1 skipped: {OTHER}", "rank 2 was in call and was stopped"):
        assert part in result.reason
    # What was left behind is told completely, so that its source can be found.
    left = ["sleep 60 (pid 7)", "cat (pid 8)"]
    assert verdict([RankOutcome(0, Kind.PASSED)], leaked=left).reason == "children left behind: " + "; ".join(left)


@pytest.mark.parametrize("size", [1, 2, 8, 9, 64])
def test_missing_gpus_are_about_hardware_for_any_number(size: int) -> None:
    """If this fails, a promise of more than eight GPUs, where the skip table ends, cannot be broken."""
    reason = f"Need at least {size} CUDA device{'s' * (size > 1)} (found 0)"
    outcome = RankOutcome(0, Kind.SKIPPED, reason=reason)
    assert verdict([outcome]).status is Status.SKIPPED
    result = verdict([outcome], promised=True)
    assert (result.status, result.cause) == (Status.FAILED, Cause.PROMISE)
    assert reason in result.reason


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (RankOutcome(0, Kind.PASSED), "passed"),
        (RankOutcome(0, Kind.SKIPPED, reason="why"), "skipped: why"),
        (RankOutcome(0, Kind.RAISED, summary="ValueError: boom", phase="setup"), "raised ValueError: boom in setup"),
        # torch's long text with addresses would fill the line.
        (
            RankOutcome(0, Kind.RAISED, summary="RuntimeError: [1.2.3.4]", collateral="lost"),
            "lost a peer in call (RuntimeError)",
        ),
        (
            RankOutcome(0, Kind.RAISED, summary="RuntimeError: [1.2.3.4]", collateral="late"),
            "timed out waiting for a peer in call (RuntimeError)",
        ),
        (RankOutcome(0, Kind.EXITED, exit_code=3), "exited with code 3 in call"),
        (RankOutcome(0, Kind.EXITED, exit_code=0), "exited with code 0 in call, without finishing the test"),
        (
            RankOutcome(0, Kind.EXITED, exit_code=UNKNOWN_EXIT_CODE, summary="node n1 is gone"),
            "was lost in call: node n1 is gone",
        ),
        (
            RankOutcome(0, Kind.EXITED, exit_code=UNKNOWN_EXIT_CODE),
            "ended in call; its exit status is known only to its parent",
        ),
        (RankOutcome(0, Kind.SIGNALLED, signal=11), "was killed by SIGSEGV (11) in call"),
        (RankOutcome(0, Kind.HUNG, phase="teardown"), "was still in teardown at the deadline"),
        (RankOutcome(0, Kind.STOPPED), "was in call and was stopped by the runner"),
        (RankOutcome(0, Kind.NEVER_STARTED), "never started"),
        (RankOutcome(0, Kind.NEVER_STARTED, summary="no room"), "never started: no room"),
        (RankOutcome(0, Kind.UNREADABLE, summary="not JSON"), "sent a report that cannot be read: not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_outcome_reads_as_a_sentence_about_its_rank(outcome: RankOutcome, expected: str) -> None:
    """If this fails, every report and the XML contain broken sentences."""
    assert outcome.describe() == expected


@pytest.mark.parametrize(
    ("exit_code", "expected"),
    [(-11, "SIGSEGV (11)"), (-9, "SIGKILL (9)"), (-200, "signal 200"), (0, "exit code 0"), (3, "exit code 3")],
)
def test_a_signal_is_named(exit_code: int, expected: str) -> None:
    """If this fails, users must look up the number of a signal."""
    assert exit_name(exit_code) == expected


@pytest.mark.parametrize(
    ("operations", "culprit", "victims", "reason"),
    [
        (
            ("all_reduce", "barrier"),
            None,
            (),
            "ranks 0, 1 were still running at the deadline (0 in all_reduce; 1 in barrier)",
        ),
        (("", ""), None, (), "ranks 0, 1 were still running at the deadline (0, 1 in call)"),
        (("all_reduce", ""), 1, (0,), "rank 1 did not come to where the others waited"),
        (("", "all_reduce", "all_reduce"), 0, (1, 2), "rank 0 did not come to where the others waited"),
        (("", "all_reduce", ""), None, (1,), "ranks 0, 2 did not come to where the others waited"),
    ],
)
def test_a_rank_that_hangs_elsewhere_is_to_blame(
    operations: tuple[str, ...], culprit: int | None, victims: tuple[int, ...], reason: str
) -> None:
    """If this fails, the report of a hang begins with a rank that only waited."""
    outcomes = [RankOutcome(rank, Kind.HUNG, operation=operation) for rank, operation in enumerate(operations)]
    expected = Verdict(Status.FAILED, Cause.HANG, reason, culprit, victims=victims)
    assert verdict(outcomes) == expected


def test_the_words_of_files_that_other_programs_read_stay() -> None:
    """If this fails, reports, events and recorded results of earlier versions have other words than new ones."""
    assert [kind.value for kind in Kind] == [
        *("passed", "skipped", "raised", "exited", "signalled", "hung", "stopped", "never started"),
        "report unreadable",
    ]
    assert [status.value for status in Status] == ["passed", "skipped", "failed"]
    assert {cause.value for cause in Cause} >= {"none", "crash", "failure", "hang", "infrastructure", "interrupted"}


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
