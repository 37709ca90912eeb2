"""The runner's record of one rank, driven as the engine drives it: frames, the end of the process, and a stop."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.rank_messages import (
    INSTRUCTIONS,
    RANK_MESSAGES,
    Done,
    FinishWorld,
    RankReport,
    Ready,
    ReportedKind,
    Warned,
)
from dist_testing.core.process.stacks import STACKS_SIGNAL
from dist_testing.core.rank.reporter import send_message

# The best first.
_BADNESS = (Kind.PASSED, Kind.SKIPPED, Kind.NEVER_STARTED, Kind.RAISED, Kind.EXITED)


class StrictSocket(socket.socket):
    """A socket that forbids a blocking read: the runner has other ranks to watch."""

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Receive as a socket does."""
        if self.gettimeout() != 0 and not flags & socket.MSG_DONTWAIT:
            raise AssertionError("the runner would wait here for what may never come")
        return super().recv(bufsize, flags)


class Rank:
    """A record, and the rank that it describes."""

    def __init__(self) -> None:
        ours, self.channel = socket.socketpair()
        fd = PhaseBoard.create(4)
        self.board = PhaseBoard(fd, 4)
        os.close(fd)
        self.record = RankRecord(3, StrictSocket(fileno=ours.detach()), self.board)
        self.send = functools.partial(send_message, self.channel)

    def report(self, kind: ReportedKind, *, phase: str = "call", **details: Any) -> None:
        """Report an outcome."""
        if kind is Kind.EXITED:
            details.setdefault("exit_code", 0)
        self.send(RankReport(kind, phase, **details))

    def start(self, *phases: str) -> None:
        """Send the frames and phases that come before an outcome, at 1.0 s."""
        self.send(Ready())
        for phase in phases:
            self.board.write(3, phase)
        assert self.record.read(1.0)

    def end(self, exit_code: int, at_s: float) -> RankOutcome:
        """End the process."""
        self.channel.close()
        self.record.ended(exit_code, at_s)
        return self.record.outcome()


@pytest.fixture
def rank() -> Iterator[Rank]:
    """A rank that was just requested."""
    rank = Rank()
    yield rank
    rank.channel.close()
    rank.record.channel.close()
    rank.board.close()


def test_a_rank_that_reports_everything_has_passed(rank: Rank) -> None:
    """If this fails, the one complete sequence (outcome, done, exit code 0) is not a pass."""
    rank.start("init", "call")
    assert (rank.record.ready_s is not None, rank.record.phase) == (True, "call")
    rank.report(Kind.PASSED)
    assert rank.record.read(2.0)
    assert (rank.record.reported, rank.record.is_settled, rank.record.is_done) == (Kind.PASSED, True, False)
    rank.board.write(3, "destroy")
    rank.send(Done())
    assert rank.record.read(3.0)
    assert rank.record.is_done
    assert rank.end(0, 4.0).kind is Kind.PASSED
    assert rank.record.has_ended
    assert rank.record.first_trouble_s is None


def test_frames_that_remain_in_the_socket_count(rank: Rank) -> None:
    """If this fails, the last report of a rank is lost when the end of its process is seen first."""
    rank.start()
    rank.report(Kind.PASSED)
    rank.send(Done())
    assert rank.end(0, 2.0).kind is Kind.PASSED


def test_a_skip_keeps_its_reason(rank: Rank) -> None:
    """If this fails, the verdict cannot compare the skip reasons of the ranks."""
    rank.start()
    rank.report(Kind.SKIPPED, reason="why")
    rank.send(Done())
    outcome = rank.end(0, 2.0)
    assert (outcome.kind, outcome.reason) == (Kind.SKIPPED, "why")


def test_a_failure_keeps_all_that_the_rank_reported(rank: Rank) -> None:
    """If this fails, the culprit's traceback is lost."""
    rank.start("call")
    rank.report(Kind.RAISED, phase="call", summary="ValueError: x", text="Traceback", collateral="late")
    assert rank.record.read(2.0)
    assert rank.record.waited_in_vain
    assert rank.end(10, 3.0) == RankOutcome(
        3, Kind.RAISED, 2.0, "call", summary="ValueError: x", text="Traceback", collateral="late"
    )


@pytest.mark.parametrize("exit_code", [10, 0, 1, -9, -11])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG, None], ids=["stopped", "hung", "alone"])
def test_the_end_of_a_failed_rank_does_not_change_its_outcome(rank: Rank, exit_code: int, kind: Kind | None) -> None:
    """If this fails, a kill during the clean-up hides why the rank failed."""
    rank.start("call")
    rank.report(Kind.RAISED, summary="ValueError: x")
    assert rank.record.read(2.0)
    rank.board.write(3, "teardown")
    assert rank.record.read(2.5) is None
    if kind is not None:
        rank.record.stop(kind, 3.0)
    outcome = rank.end(exit_code, 4.0)
    assert (outcome.kind, outcome.at_s, outcome.phase) == (Kind.RAISED, 2.0, "call")


@pytest.mark.parametrize("exit_code", [0, 3, 72, 77, 255])
@pytest.mark.parametrize("ignores_exits", [False, True])
def test_an_end_without_a_report_is_an_exit(rank: Rank, exit_code: int, ignores_exits: bool) -> None:
    """If this fails, `os._exit` in test code is not an exit with its code.

    Where a class judges the exits itself, its other ranks continue.
    """
    rank.start("call")
    rank.record.ignores_exits = ignores_exits
    outcome = rank.end(exit_code, 2.0)
    assert (outcome.kind, outcome.exit_code, outcome.phase, outcome.at_s) == (Kind.EXITED, exit_code, "call", 2.0)
    assert rank.record.first_trouble_s == (None if ignores_exits else 2.0)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_the_signal_that_ended_a_rank_is_named(rank: Rank, number: signal.Signals) -> None:
    """If this fails, the user does not learn the signal, which is all that is known without a report."""
    rank.start("call")
    outcome = rank.end(-number, 2.0)
    assert (outcome.kind, outcome.signal, outcome.exit_code) == (Kind.SIGNALLED, number, None)


@pytest.mark.parametrize("exit_code", [1, 10, -6, -11])
@pytest.mark.parametrize("report", [Kind.PASSED, Kind.SKIPPED])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_bad_end_after_a_good_report_is_not_a_pass(
    rank: Rank, exit_code: int, report: ReportedKind, is_done: bool
) -> None:
    """If this fails, a crash while the group is destroyed passes."""
    rank.start("call")
    rank.report(report)
    if is_done:
        rank.send(Done())
    assert rank.end(exit_code, 2.0).kind is (Kind.SIGNALLED if exit_code < 0 else Kind.EXITED)


def test_a_good_report_without_the_done_frame_is_not_a_pass(rank: Rank) -> None:
    """If this fails, a rank that ended between its test and its clean-up passes."""
    rank.start("call")
    rank.report(Kind.PASSED)
    outcome = rank.end(0, 2.0)
    assert (outcome.kind, outcome.exit_code) == (Kind.EXITED, 0)


def test_the_done_frame_without_a_report_is_not_a_pass(rank: Rank) -> None:
    """If this fails, a rank passes without having reported that its test passed."""
    rank.start("call")
    rank.send(Done())
    assert rank.end(0, 2.0).kind is Kind.EXITED


@pytest.mark.parametrize(("exit_code", "how"), [(-9, "SIGKILL"), (1, "exit code 1"), (0, "exit code 0")])
def test_an_end_before_ready_is_a_rank_that_never_started(rank: Rank, exit_code: int, how: str) -> None:
    """If this fails, a test is blamed although no test code has run."""
    outcome = rank.end(exit_code, 2.0)
    assert outcome.kind is Kind.NEVER_STARTED
    assert how in outcome.summary


def test_a_rank_that_could_not_start_reports_why(rank: Rank) -> None:
    """If this fails, the exit code replaces the rank's own reason."""
    rank.report(Kind.NEVER_STARTED, phase="start", summary="OSError: no space", text="Traceback")
    outcome = rank.end(10, 2.0)
    assert (outcome.kind, outcome.summary, outcome.text) == (Kind.NEVER_STARTED, "OSError: no space", "Traceback")


@pytest.mark.parametrize(
    "data",
    [
        b"Hello, world, this is a print",
        b"\x00\x00\x00\x02\x00\x00{]",
        b'\x00\x00\x00\x1d\x00\x00{"schema":5,"message":"What"}',
        b'\x00\x00\x00\x1e\x00\x00{"schema":8,"message":"Ready"}',
        b'\x00\x00\x00\x1e\x00\x01{"schema":7,"message":"Ready"}',
    ],
    ids=["text", "not JSON", "unknown", "newer", "descriptors"],
)
@pytest.mark.parametrize("has_passed", [False, True])
def test_an_unreadable_report_is_reported_as_such(rank: Rank, data: bytes, has_passed: bool) -> None:
    """If this fails, an unreadable frame after a good report is ignored although it may report a failure."""
    rank.start("call")
    if has_passed:
        rank.report(Kind.PASSED)
        assert rank.record.read(1.5)
    rank.channel.sendall(data)
    assert rank.record.read(2.0) is False
    rank.report(Kind.RAISED)
    outcome = rank.end(0, 3.0)
    assert (outcome.kind, outcome.at_s) == (Kind.UNREADABLE, 2.0)
    assert outcome.summary


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "fine"), ("kind", "hung"), ("exit_code", 3), ("collateral", "yes"), ("more", 1), ("text", None)],
)
def test_an_outcome_of_an_unknown_kind_is_unreadable(rank: Rank, field: str, value: object) -> None:
    """If this fails, an unknown kind is ignored although it may mean a failure."""
    rank.start()
    content = json.loads(RANK_MESSAGES.to_wire(RankReport(Kind.PASSED, "call")))
    payload = json.dumps({**content, field: value}).encode()
    rank.channel.sendall(struct.pack(">IH", len(payload), 0) + payload)
    assert rank.record.read(2.0) is False
    outcome = rank.end(0, 3.0)
    assert outcome.kind is Kind.UNREADABLE
    assert "RankReport" in outcome.summary
    assert field in outcome.summary
    assert "\n" not in outcome.summary
    assert "one version of dist_testing" in outcome.text


def test_an_incomplete_last_frame_is_unreadable(rank: Rank) -> None:
    """If this fails, a rank that died during its report counts as one that did not report."""
    rank.start()
    rank.channel.sendall(b"\x00\x00\x01\x00\x00\x00{")
    assert rank.record.read(2.0)
    outcome = rank.end(0, 3.0)
    assert outcome.kind is Kind.UNREADABLE
    assert "incomplete" in outcome.summary


def test_an_incomplete_frame_does_not_hide_a_reported_failure(rank: Rank) -> None:
    """If this fails, an incomplete frame hides a failure and its traceback."""
    rank.start("call")
    rank.report(Kind.RAISED, summary="ValueError: x", text="Traceback")
    rank.channel.sendall(b"\x00\x00\x01\x00\x00\x00{")
    outcome = rank.end(-9, 3.0)
    assert (outcome.kind, outcome.summary, outcome.text) == (Kind.RAISED, "ValueError: x", "Traceback")


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.permutations(_BADNESS, 2)),
)
def test_the_worse_of_two_reports_counts_in_either_order(rank: Rank, first: ReportedKind, second: ReportedKind) -> None:
    """If this fails, a failed teardown is lost after a pass, or a pass takes a failure back."""
    rank.start("call")
    rank.report(first, summary=first.value)
    rank.report(second, summary=second.value)
    rank.send(Done())
    outcome = rank.end(0, 3.0)
    assert outcome.summary == max(first, second, key=_BADNESS.index).value


def test_the_first_of_two_failures_counts(rank: Rank) -> None:
    """If this fails, a failed teardown replaces the failure of the test that caused it."""
    rank.start("call")
    rank.report(Kind.RAISED, phase="call", summary="first")
    rank.report(Kind.RAISED, phase="teardown", summary="second")
    rank.report(Kind.RAISED, phase="teardown", summary="third")
    outcome = rank.end(10, 3.0)
    assert (outcome.summary, outcome.phase) == ("first", "call")
    told = [(further.summary, further.phase) for further in outcome.further]
    assert told == [("second", "teardown"), ("third", "teardown")]


def test_every_kind_of_many_failures_is_kept(rank: Rank) -> None:
    """If this fails, a loop of sub-tests fills the runner's memory, or hides an unexpected failure of the teardown."""
    rank.start("call")
    for _ in range(100):
        rank.report(Kind.RAISED, types="AssertionError")
    rank.report(Kind.RAISED, phase="teardown", types="OSError")
    outcome = rank.end(10, 3.0)
    assert (len(outcome.further) + outcome.more_count, outcome.more_count > 70) == (100, True)
    assert (outcome.further[-1].phase, outcome.further[-1].types) == ("teardown", "OSError")


def test_a_worse_report_keeps_the_time_of_the_first_failure(rank: Rank) -> None:
    """If this fails, a peer that failed between the two reports is blamed."""
    rank.start("call")
    rank.report(Kind.RAISED, summary="first")
    assert rank.record.read(2.0)
    rank.report(Kind.EXITED, exit_code=3)
    assert rank.record.read(5.0)
    assert rank.record.first_trouble_s == 2.0
    assert rank.end(10, 6.0).at_s == 2.0


def test_only_an_exit_has_an_exit_code(rank: Rank) -> None:
    """If this fails, other outcomes carry a meaningless exit code."""
    rank.start()
    rank.report(Kind.EXITED, exit_code=3)
    assert rank.end(10, 2.0).exit_code == 3
    with pytest.raises(ValueError, match="kind 'raised' with exit_code 0"):
        RankReport(Kind.RAISED, "call", exit_code=0)
    with pytest.raises(ValueError, match="kind 'exited' with exit_code None"):
        RankReport(Kind.EXITED, "call")


@pytest.mark.parametrize("exit_code", [-signal.SIGKILL, -STACKS_SIGNAL])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG])
def test_a_rank_that_the_runner_stops_keeps_the_runners_reason(rank: Rank, kind: Kind, exit_code: int) -> None:
    """If this fails, a rank that the runner itself ended appears as "killed by SIGKILL".

    The signal that asks for stacks also ends a rank that cannot answer yet.
    """
    rank.start("call")
    rank.record.stop(kind, 2.0)
    outcome = rank.end(exit_code, 3.0)
    assert (outcome.kind, outcome.phase) == (kind, "call")


def test_a_hang_is_a_failure_and_a_stop_is_not(rank: Rank) -> None:
    """If this fails, the end of a stopped rank, which is a victim, competes for the first failure."""
    rank.start("call")
    rank.record.stop(Kind.STOPPED, 2.0)
    rank.end(-9, 3.0)
    assert rank.record.first_trouble_s in (None, 3.0)
    other = Rank()
    other.start("call")
    other.record.stop(Kind.HUNG, 2.0)
    other.end(-9, 3.0)
    assert other.record.first_trouble_s == 2.0


def test_the_first_stop_counts(rank: Rank) -> None:
    """If this fails, a rank that hung becomes a stopped one while it is being killed."""
    rank.start("call")
    rank.record.stop(Kind.HUNG, 2.0)
    rank.record.stop(Kind.STOPPED, 2.1)
    assert rank.end(-9, 3.0).kind is Kind.HUNG


def test_stopping_a_rank_that_has_ended_changes_nothing(rank: Rank) -> None:
    """If this fails, a later stop replaces the rank's own end."""
    rank.start("call")
    rank.end(-11, 2.0)
    rank.record.stop(Kind.HUNG, 3.0)
    assert rank.record.outcome().kind is Kind.SIGNALLED


@pytest.mark.parametrize("exit_code", [-signal.SIGSEGV, -signal.SIGABRT])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG])
def test_a_crash_before_the_kill_is_a_crash(rank: Rank, exit_code: int, kind: Kind) -> None:
    """If this fails, a crash is hidden as a victim. The runner sends only SIGKILL: another signal is the rank's own."""
    rank.start("call")
    rank.record.stop(kind, 2.0)
    outcome = rank.end(exit_code, 3.0)
    assert (outcome.kind, outcome.signal) == (Kind.SIGNALLED, -exit_code)


@pytest.mark.parametrize("report", [Kind.PASSED, Kind.SKIPPED])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG])
def test_a_rank_that_waits_after_its_test_keeps_its_outcome(rank: Rank, report: ReportedKind, kind: Kind) -> None:
    """If this fails, a rank that waited for its peer after its test gets the blame for the peer."""
    rank.start("call")
    rank.report(report)
    assert rank.record.read(2.0)
    rank.record.stop(kind, 3.0)
    assert rank.end(-9, 4.0).kind is report


def test_a_rank_that_hangs_while_it_destroys_its_groups_has_hung(rank: Rank) -> None:
    """If this fails, a hang in the clean-up passes."""
    rank.start("call")
    rank.report(Kind.PASSED)
    rank.board.write(3, "destroy")
    assert rank.record.read(2.0)
    rank.record.stop(Kind.HUNG, 3.0)
    outcome = rank.end(-9, 4.0)
    assert (outcome.kind, outcome.phase) == (Kind.HUNG, "destroy")


def test_a_rank_that_ignores_the_instruction_to_finish_has_hung(rank: Rank) -> None:
    """If this fails, a rank that stops between its report and its end passes, because all others passed."""
    rank.start("call")
    rank.report(Kind.PASSED)
    assert rank.record.read(2.0)
    rank.record.instruct(FinishWorld())
    rank.record.stop(Kind.HUNG, 3.0)
    assert rank.end(-9, 4.0).kind is Kind.HUNG


def test_an_early_close_before_a_stop_is_never_a_pass(rank: Rank) -> None:
    """If this fails, a rank passes although it closed its channel early, which was the reason for the stop."""
    rank.start("call")
    rank.report(Kind.PASSED)
    assert rank.record.read(2.0)
    rank.channel.shutdown(socket.SHUT_WR)
    assert not rank.record.read(2.5)
    assert rank.record.first_trouble_s == 2.5
    rank.record.stop(Kind.STOPPED, 3.0)
    assert rank.end(-9, 4.0).kind not in (Kind.PASSED, Kind.SKIPPED)


def test_the_end_of_a_rank_does_not_wait_for_its_children(rank: Rank) -> None:
    """If this fails, a forked child, which holds the rank's channel open, delays the verdict."""
    rank.start("call")
    child = rank.channel.dup()
    with child:
        outcome = rank.end(3, 2.0)
    assert (outcome.kind, outcome.exit_code) == (Kind.EXITED, 3)


@pytest.mark.parametrize("report", [Kind.PASSED, Kind.SKIPPED, Kind.RAISED])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG])
def test_reports_after_the_stop_do_not_count(rank: Rank, report: ReportedKind, kind: Kind) -> None:
    """If this fails, a rank that passes after its deadline, woken by the request for stacks, counts as passed."""
    rank.start("call")
    rank.record.stop(kind, 2.0)
    rank.report(report)
    assert rank.end(-9, 3.0).kind is kind


def test_a_reset_channel_is_the_end_of_the_stream(rank: Rank) -> None:
    """If this fails, a socket that Linux resets because of unread data causes an error in the runner."""
    rank.start("call")
    rank.record.channel.sendall(b"unread")
    rank.channel.close()
    assert rank.record.read(2.0) is False
    assert rank.record.first_trouble_s == 2.0
    assert rank.record.channel.fileno() < 0


def test_the_end_of_the_stream_after_the_done_frame_is_normal(rank: Rank) -> None:
    """If this fails, the normal end of every good rank counts as a failure."""
    rank.start("call")
    rank.report(Kind.PASSED)
    rank.send(Done())
    assert rank.record.read(2.0)
    rank.channel.close()
    assert not rank.record.read(3.0)
    assert rank.record.first_trouble_s is None


def test_instructions_reach_the_rank(rank: Rank) -> None:
    """If this fails, a rank does not learn that its peers have finished."""
    rank.record.instruct(FinishWorld())
    assert wire.receive(rank.channel, INSTRUCTIONS) == (FinishWorld(), [])


def test_instructing_a_dead_rank_is_not_an_error(rank: Rank) -> None:
    """If this fails, a message to a dead rank ends the runner before it sees that end."""
    rank.channel.close()
    rank.record.instruct(FinishWorld())


@pytest.mark.parametrize(("expected", "exit_code"), [(-9, -9), (3, 3), (0, 0)])
def test_an_expected_end_is_a_pass(rank: Rank, expected: int, exit_code: int) -> None:
    """If this fails, a fault test that kills a rank on purpose fails."""
    rank.record.begin_case(expected)
    rank.start("call")
    assert rank.end(exit_code, 2.0).kind is Kind.PASSED
    assert rank.record.ended_as_expected
    assert rank.record.is_settled
    assert rank.record.first_trouble_s is None


@pytest.mark.parametrize(("expected", "exit_code"), [(-9, -11), (-9, 0), (3, 4), (0, 3), (3, -9)])
def test_another_end_than_the_expected_one_is_a_failure(rank: Rank, expected: int, exit_code: int) -> None:
    """If this fails, a rank that ends in another way passes, or the report lacks one of the two exit codes."""
    rank.record.begin_case(expected)
    rank.start("call")
    outcome = rank.end(exit_code, 2.0)
    assert outcome.kind is Kind.RAISED
    assert str(abs(expected)) in outcome.summary
    assert str(abs(exit_code)) in outcome.summary
    assert rank.record.first_trouble_s == 2.0


def test_a_rank_that_should_have_died_and_passed_has_failed(rank: Rank) -> None:
    """If this fails, a fault test passes although its fault did not happen."""
    rank.record.begin_case(-9)
    rank.start("call")
    rank.report(Kind.PASSED)
    rank.send(Done())
    assert rank.end(0, 2.0).kind is Kind.RAISED


def test_a_failure_before_the_expected_end_is_a_failure(rank: Rank) -> None:
    """If this fails, the expected end excuses a failure before it."""
    rank.record.begin_case(-9)
    rank.start("call")
    rank.report(Kind.RAISED, summary="AssertionError: before")
    assert rank.end(-9, 2.0).summary == "AssertionError: before"


def test_a_pooled_rank_begins_its_next_case_without_the_last_report(rank: Rank) -> None:
    """If this fails, a pooled rank passes its next case with the last report, or its warnings have no limit."""
    rank.start("call")
    for number in range(150):
        rank.send(Warned("UserWarning", str(number), "test_a.py", 1))
    rank.report(Kind.PASSED)
    assert rank.record.read(2.0)
    assert (rank.record.outcome().kind, len(rank.record.warnings)) == (Kind.PASSED, 100)
    rank.record.begin_case(None)
    assert not rank.record.warnings
    assert rank.record.reported is None
    assert not rank.record.is_settled
    assert rank.end(3, 3.0).kind is Kind.EXITED
