"""The runner's record of one rank, driven as the engine drives it: frames, the end of the process, and a stop."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from dist_testing.engine.rank_record import RankRecord
from dist_testing.outcomes import Kind, RankOutcome
from dist_testing.process import wire
from dist_testing.process.board import PhaseBoard
from dist_testing.process.frames import FrameWriter
from dist_testing.process.rank_messages import (
    INSTRUCTIONS,
    RANK_MESSAGES,
    Done,
    FinishWorld,
    RankReport,
    Ready,
    ReportedKind,
    Warned,
)
from dist_testing.process.stacks import STACKS_SIGNAL

# The best first.
_BADNESS = (Kind.PASSED, Kind.SKIPPED, Kind.NEVER_STARTED, Kind.RAISED, Kind.EXITED)


class StrictSocket(socket.socket):
    """A socket on which a read that could wait is an error: the runner has other ranks to look after."""

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """As of a socket."""
        if self.gettimeout() != 0 and not flags & socket.MSG_DONTWAIT:
            raise AssertionError("the runner would wait here for what may never come")
        return super().recv(bufsize, flags)


class Rank:
    """A record, and the rank that it is about."""

    def __init__(self) -> None:
        ours, self.channel = socket.socketpair()
        fd = PhaseBoard.create(4)
        self.board = PhaseBoard(fd, 4)
        os.close(fd)
        self.record = RankRecord(3, StrictSocket(fileno=ours.detach()), self.board)
        self.frames = FrameWriter(self.channel)

    def report(self, kind: ReportedKind, *, phase: str = "call", **details: Any) -> None:
        """Report an outcome."""
        if kind is Kind.EXITED:
            details.setdefault("exit_code", 0)
        self.frames.send(RankReport(kind, phase, **details))

    def start(self, *phases: str) -> None:
        """Send what a rank sends before it has an outcome, at 1.0 s."""
        self.frames.send(Ready())
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
    """A rank that was just asked for."""
    rank = Rank()
    yield rank
    rank.channel.close()
    rank.record.channel.close()
    rank.board.close()


def test_a_rank_that_passes_to_the_end_has_passed(rank: Rank) -> None:
    """The one way to a pass: outcome, done, exit code 0."""
    rank.start("init", "call")
    assert (rank.record.is_ready, rank.record.phase) == (True, "call")
    rank.report(Kind.PASSED)
    assert rank.record.read(2.0)
    assert (rank.record.reported, rank.record.is_settled, rank.record.is_done) == (Kind.PASSED, True, False)
    rank.board.write(3, "destroy")
    rank.frames.send(Done())
    assert rank.record.read(3.0)
    assert rank.record.is_done
    assert rank.end(0, 4.0).kind is Kind.PASSED
    assert rank.record.has_ended
    assert rank.record.first_trouble_s is None


def test_frames_that_are_left_in_the_socket_count(rank: Rank) -> None:
    """The end of the process is often seen before its last words."""
    rank.start()
    rank.report(Kind.PASSED)
    rank.frames.send(Done())
    assert rank.end(0, 2.0).kind is Kind.PASSED


def test_a_skip_keeps_its_reason(rank: Rank) -> None:
    """The verdict compares it with the other ranks'."""
    rank.start()
    rank.report(Kind.SKIPPED, reason="why")
    rank.frames.send(Done())
    outcome = rank.end(0, 2.0)
    assert (outcome.kind, outcome.reason) == (Kind.SKIPPED, "why")


def test_a_failure_keeps_all_that_the_rank_said(rank: Rank) -> None:
    """It is the culprit's traceback."""
    rank.start("call")
    rank.report(Kind.RAISED, phase="call", summary="ValueError: x", text="Traceback", collateral="late")
    assert rank.record.read(2.0)
    assert rank.record.waited_in_vain
    assert rank.end(10, 3.0) == RankOutcome(
        3, Kind.RAISED, 2.0, "call", summary="ValueError: x", text="Traceback", collateral="late"
    )


@pytest.mark.parametrize("exit_code", [10, 0, 1, -9, -11])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG, None], ids=["stopped", "hung", "alone"])
def test_how_a_failed_rank_left_adds_nothing(rank: Rank, exit_code: int, kind: Kind | None) -> None:
    """A kill while it cleaned up must not hide why it failed."""
    rank.start("call")
    rank.report(Kind.RAISED, summary="ValueError: x")
    assert rank.record.read(2.0)
    rank.board.write(3, "teardown")
    assert rank.record.read(2.5)
    if kind is not None:
        rank.record.stop(kind, 3.0)
    outcome = rank.end(exit_code, 4.0)
    assert (outcome.kind, outcome.at_s, outcome.phase) == (Kind.RAISED, 2.0, "call")


@pytest.mark.parametrize("exit_code", [0, 3, 72, 77, 255])
@pytest.mark.parametrize("is_patient", [False, True])
def test_leaving_without_a_report_is_an_exit(rank: Rank, exit_code: int, is_patient: bool) -> None:
    """`os._exit` in test code, with any code. Where a class judges the ends itself, its other ranks go on."""
    rank.start("call")
    rank.record.is_patient = is_patient
    outcome = rank.end(exit_code, 2.0)
    assert (outcome.kind, outcome.exit_code, outcome.phase, outcome.at_s) == (Kind.EXITED, exit_code, "call", 2.0)
    assert rank.record.first_trouble_s == (None if is_patient else 2.0)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_dying_by_a_signal_names_it(rank: Rank, number: signal.Signals) -> None:
    """Without a report there is nothing else to go by."""
    rank.start("call")
    outcome = rank.end(-number, 2.0)
    assert (outcome.kind, outcome.signal, outcome.exit_code) == (Kind.SIGNALLED, number, None)


@pytest.mark.parametrize("exit_code", [1, 10, -6, -11])
@pytest.mark.parametrize("report", [Kind.PASSED, Kind.SKIPPED])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_bad_end_after_a_good_report_is_no_pass(
    rank: Rank, exit_code: int, report: ReportedKind, is_done: bool
) -> None:
    """A crash while the group is destroyed fails the case."""
    rank.start("call")
    rank.report(report)
    if is_done:
        rank.frames.send(Done())
    assert rank.end(exit_code, 2.0).kind is (Kind.SIGNALLED if exit_code < 0 else Kind.EXITED)


def test_a_good_report_without_the_last_word_is_no_pass(rank: Rank) -> None:
    """Something ended the process between the test and its end."""
    rank.start("call")
    rank.report(Kind.PASSED)
    outcome = rank.end(0, 2.0)
    assert (outcome.kind, outcome.exit_code) == (Kind.EXITED, 0)


def test_the_last_word_without_a_report_is_no_pass(rank: Rank) -> None:
    """Nothing said that the test was any good."""
    rank.start("call")
    rank.frames.send(Done())
    assert rank.end(0, 2.0).kind is Kind.EXITED


@pytest.mark.parametrize(("exit_code", "how"), [(-9, "SIGKILL"), (1, "exit code 1"), (0, "exit code 0")])
def test_an_end_before_ready_is_a_rank_that_never_started(rank: Rank, exit_code: int, how: str) -> None:
    """No test code has run, so no test is to blame."""
    outcome = rank.end(exit_code, 2.0)
    assert outcome.kind is Kind.NEVER_STARTED
    assert how in outcome.summary


def test_a_rank_that_reports_that_it_could_not_start_says_why(rank: Rank) -> None:
    """Its own words are better than the exit code."""
    rank.report(Kind.NEVER_STARTED, phase="start", summary="OSError: no space", text="Traceback")
    outcome = rank.end(10, 2.0)
    assert (outcome.kind, outcome.summary, outcome.text) == (Kind.NEVER_STARTED, "OSError: no space", "Traceback")


@pytest.mark.parametrize(
    "data",
    [
        b"Hello, world, this is a print",
        b"\x00\x00\x00\x02\x00\x00{]",
        b'\x00\x00\x00\x1d\x00\x00{"schema":1,"message":"What"}',
        b'\x00\x00\x00\x1e\x00\x00{"schema":2,"message":"Ready"}',
        b'\x00\x00\x00\x1e\x00\x01{"schema":1,"message":"Ready"}',
    ],
    ids=["text", "not JSON", "unknown", "newer", "descriptors"],
)
@pytest.mark.parametrize("has_passed", [False, True])
def test_a_report_that_cannot_be_read_is_told_as_such(rank: Rank, data: bytes, has_passed: bool) -> None:
    """Also after a good one: what came in between may have been a failure. What follows can begin anywhere."""
    rank.start("call")
    if has_passed:
        rank.report(Kind.PASSED)
        assert rank.record.read(1.5)
    rank.channel.sendall(data)
    assert not rank.record.read(2.0)
    rank.report(Kind.RAISED)
    outcome = rank.end(0, 3.0)
    assert (outcome.kind, outcome.at_s) == (Kind.UNREADABLE, 2.0)
    assert outcome.summary


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "fine"), ("kind", "hung"), ("exit_code", 3), ("collateral", "yes"), ("more", 1), ("text", None)],
)
def test_a_report_that_no_rank_sends_cannot_be_read(rank: Rank, field: str, value: object) -> None:
    """It could have meant a failure; and a rank must not be able to call itself a victim, or stopped by the runner."""
    rank.start()
    content = json.loads(RANK_MESSAGES.to_wire(RankReport(Kind.PASSED, "call")))
    payload = json.dumps({**content, field: value}).encode()
    rank.channel.sendall(struct.pack(">IH", len(payload), 0) + payload)
    assert not rank.record.read(2.0)
    outcome = rank.end(0, 3.0)
    assert outcome.kind is Kind.UNREADABLE
    assert "RankReport" in outcome.summary
    assert field in outcome.summary
    assert "\n" not in outcome.summary
    assert "one version of dist_testing" in outcome.text


def test_a_torn_last_frame_cannot_be_read(rank: Rank) -> None:
    """A rank that died while it reported."""
    rank.start()
    rank.channel.sendall(b"\x00\x00\x01\x00\x00\x00{")
    assert rank.record.read(2.0)
    outcome = rank.end(0, 3.0)
    assert outcome.kind is Kind.UNREADABLE
    assert "incomplete" in outcome.summary


def test_a_torn_frame_does_not_hide_a_failure_that_was_told(rank: Rank) -> None:
    """A failure beats broken machinery; its traceback is what people need."""
    rank.start("call")
    rank.report(Kind.RAISED, summary="ValueError: x", text="Traceback")
    rank.channel.sendall(b"\x00\x00\x01\x00\x00\x00{")
    outcome = rank.end(-9, 3.0)
    assert (outcome.kind, outcome.summary, outcome.text) == (Kind.RAISED, "ValueError: x", "Traceback")


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.permutations(_BADNESS, 2)),
)
def test_of_two_reports_the_worse_counts_in_either_order(rank: Rank, first: ReportedKind, second: ReportedKind) -> None:
    """A teardown can fail after the test has passed, and a pass can never take a failure back."""
    rank.start("call")
    rank.report(first, summary=first.value)
    rank.report(second, summary=second.value)
    rank.frames.send(Done())
    outcome = rank.end(0, 3.0)
    assert outcome.summary == max(first, second, key=_BADNESS.index).value


def test_the_first_of_two_failures_counts(rank: Rank) -> None:
    """The teardown often fails because the test did."""
    rank.start("call")
    rank.report(Kind.RAISED, phase="call", summary="first")
    rank.report(Kind.RAISED, phase="teardown", summary="second")
    rank.report(Kind.RAISED, phase="teardown", summary="third")
    outcome = rank.end(10, 3.0)
    assert (outcome.summary, outcome.phase) == ("first", "call")
    told = [(further.summary, further.phase) for further in outcome.further]
    assert told == [("second", "teardown"), ("third", "teardown")]


def test_of_many_failures_every_kind_is_kept(rank: Rank) -> None:
    """A loop of sub-tests must not fill the runner's memory, nor hide that the teardown failed as nobody expected."""
    rank.start("call")
    for _ in range(100):
        rank.report(Kind.RAISED, types="AssertionError")
    rank.report(Kind.RAISED, phase="teardown", types="OSError")
    outcome = rank.end(10, 3.0)
    assert (len(outcome.further) + outcome.more_count, outcome.more_count > 70) == (100, True)
    assert (outcome.further[-1].phase, outcome.further[-1].types) == ("teardown", "OSError")


def test_a_worse_report_does_not_make_the_trouble_younger(rank: Rank) -> None:
    """Who failed first is judged by the first sign; a peer that failed in between would be blamed."""
    rank.start("call")
    rank.report(Kind.RAISED, summary="first")
    assert rank.record.read(2.0)
    rank.report(Kind.EXITED, exit_code=3)
    assert rank.record.read(5.0)
    assert rank.record.first_trouble_s == 2.0
    assert rank.end(10, 6.0).at_s == 2.0


def test_only_an_exit_has_an_exit_code(rank: Rank) -> None:
    """An exit without one, or another report with one, is no report."""
    rank.start()
    rank.report(Kind.EXITED, exit_code=3)
    assert rank.end(10, 2.0).exit_code == 3
    with pytest.raises(ValueError, match="kind 'raised' with exit_code 0"):
        RankReport(Kind.RAISED, "call", exit_code=0)
    with pytest.raises(ValueError, match="kind 'exited' with exit_code None"):
        RankReport(Kind.EXITED, "call")


@pytest.mark.parametrize("exit_code", [-signal.SIGKILL, -STACKS_SIGNAL])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG])
def test_a_rank_that_the_runner_ends_is_what_it_was_ended_as(rank: Rank, kind: Kind, exit_code: int) -> None:
    """Not "killed by SIGKILL", nor by the question for its stacks, which ends who cannot answer yet: that was us."""
    rank.start("call")
    rank.record.stop(kind, 2.0)
    outcome = rank.end(exit_code, 3.0)
    assert (outcome.kind, outcome.phase) == (kind, "call")


def test_a_hang_is_trouble_and_a_stop_is_not(rank: Rank) -> None:
    """A stopped rank is a victim; its end must not compete for who was first."""
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
    """A rank that hung stays hung, whatever happens while it is being killed."""
    rank.start("call")
    rank.record.stop(Kind.HUNG, 2.0)
    rank.record.stop(Kind.STOPPED, 2.1)
    assert rank.end(-9, 3.0).kind is Kind.HUNG


def test_stopping_a_rank_that_has_ended_changes_nothing(rank: Rank) -> None:
    """Its own end was first."""
    rank.start("call")
    rank.end(-11, 2.0)
    rank.record.stop(Kind.HUNG, 3.0)
    assert rank.record.outcome().kind is Kind.SIGNALLED


@pytest.mark.parametrize("exit_code", [-signal.SIGSEGV, -signal.SIGABRT])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG])
def test_a_crash_that_overtakes_the_kill_is_a_crash(rank: Rank, exit_code: int, kind: Kind) -> None:
    """The runner sends SIGKILL; another signal is the rank's own, and calling it a victim hides the crash."""
    rank.start("call")
    rank.record.stop(kind, 2.0)
    outcome = rank.end(exit_code, 3.0)
    assert (outcome.kind, outcome.signal) == (Kind.SIGNALLED, -exit_code)


@pytest.mark.parametrize("report", [Kind.PASSED, Kind.SKIPPED])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG])
def test_a_rank_that_had_ended_its_test_and_waited_keeps_its_outcome(
    rank: Rank, report: ReportedKind, kind: Kind
) -> None:
    """The peer that it waited for is the one that hung or failed."""
    rank.start("call")
    rank.report(report)
    assert rank.record.read(2.0)
    rank.record.stop(kind, 3.0)
    assert rank.end(-9, 4.0).kind is report


def test_a_rank_that_hangs_while_it_gives_its_groups_back_hung(rank: Rank) -> None:
    """Its test was over; its end was not."""
    rank.start("call")
    rank.report(Kind.PASSED)
    rank.board.write(3, "destroy")
    assert rank.record.read(2.0)
    rank.record.stop(Kind.HUNG, 3.0)
    outcome = rank.end(-9, 4.0)
    assert (outcome.kind, outcome.phase) == (Kind.HUNG, "destroy")


def test_a_rank_that_never_answers_the_instruction_to_finish_hung(rank: Rank) -> None:
    """Stopped between its report and the next frame, it has not ended well; all others passed, so nobody else fails."""
    rank.start("call")
    rank.report(Kind.PASSED)
    assert rank.record.read(2.0)
    rank.record.instruct(FinishWorld())
    rank.record.stop(Kind.HUNG, 3.0)
    assert rank.end(-9, 4.0).kind is Kind.HUNG


def test_trouble_before_a_stop_is_never_a_pass(rank: Rank) -> None:
    """A channel that was closed without a last word was the reason for the stop."""
    rank.start("call")
    rank.report(Kind.PASSED)
    assert rank.record.read(2.0)
    rank.channel.shutdown(socket.SHUT_WR)
    assert not rank.record.read(2.5)
    assert rank.record.first_trouble_s == 2.5
    rank.record.stop(Kind.STOPPED, 3.0)
    assert rank.end(-9, 4.0).kind not in (Kind.PASSED, Kind.SKIPPED)


def test_the_end_of_a_rank_does_not_wait_for_its_children(rank: Rank) -> None:
    """A child that was forked from the rank holds its channel open, for as long as it lives."""
    rank.start("call")
    child = rank.channel.dup()
    with child:
        outcome = rank.end(3, 2.0)
    assert (outcome.kind, outcome.exit_code) == (Kind.EXITED, 3)


@pytest.mark.parametrize("report", [Kind.PASSED, Kind.SKIPPED, Kind.RAISED])
@pytest.mark.parametrize("kind", [Kind.STOPPED, Kind.HUNG])
def test_what_a_rank_reports_after_it_was_given_up_does_not_count(rank: Rank, report: ReportedKind, kind: Kind) -> None:
    """Being asked for its stacks can wake it up; that it then passes is no pass in time."""
    rank.start("call")
    rank.record.stop(kind, 2.0)
    rank.report(report)
    assert rank.end(-9, 3.0).kind is kind


def test_a_reset_channel_is_the_end_of_the_stream(rank: Rank) -> None:
    """Linux resets a socket whose other end was closed with unread data."""
    rank.start("call")
    rank.record.channel.sendall(b"unread")
    rank.channel.close()
    assert not rank.record.read(2.0)
    assert rank.record.first_trouble_s == 2.0
    assert rank.record.channel.fileno() < 0


def test_the_end_of_the_stream_after_the_last_word_is_no_trouble(rank: Rank) -> None:
    """That is how every good rank ends."""
    rank.start("call")
    rank.report(Kind.PASSED)
    rank.frames.send(Done())
    assert rank.record.read(2.0)
    rank.channel.close()
    assert not rank.record.read(3.0)
    assert rank.record.first_trouble_s is None


def test_instructions_reach_the_rank(rank: Rank) -> None:
    """They are how it learns that its peers are well."""
    rank.record.instruct(FinishWorld())
    assert wire.receive(rank.channel, INSTRUCTIONS) == (FinishWorld(), [])


def test_instructing_a_dead_rank_is_no_error(rank: Rank) -> None:
    """Its end is about to be seen like any other."""
    rank.channel.close()
    rank.record.instruct(FinishWorld())


@pytest.mark.parametrize(("expected", "exit_code"), [(-9, -9), (3, 3), (0, 0)])
def test_an_expected_end_is_a_pass(rank: Rank, expected: int, exit_code: int) -> None:
    """Fault tests kill a rank on purpose."""
    rank.record.begin_case(expected)
    rank.start("call")
    assert rank.end(exit_code, 2.0).kind is Kind.PASSED
    assert rank.record.ended_as_expected
    assert rank.record.is_settled
    assert rank.record.first_trouble_s is None


@pytest.mark.parametrize(("expected", "exit_code"), [(-9, -11), (-9, 0), (3, 4), (0, 3), (3, -9)])
def test_another_end_than_the_expected_one_is_a_failure(rank: Rank, expected: int, exit_code: int) -> None:
    """Both ends are named: the one that was wanted and the one that came."""
    rank.record.begin_case(expected)
    rank.start("call")
    outcome = rank.end(exit_code, 2.0)
    assert outcome.kind is Kind.RAISED
    assert str(abs(expected)) in outcome.summary
    assert str(abs(exit_code)) in outcome.summary
    assert rank.record.first_trouble_s == 2.0


def test_a_rank_that_should_have_died_and_passed_has_failed(rank: Rank) -> None:
    """The fault did not happen, so the test has shown nothing."""
    rank.record.begin_case(-9)
    rank.start("call")
    rank.report(Kind.PASSED)
    rank.frames.send(Done())
    assert rank.end(0, 2.0).kind is Kind.RAISED


def test_a_failure_before_the_expected_end_is_a_failure(rank: Rank) -> None:
    """Dying as expected does not excuse what was wrong before."""
    rank.record.begin_case(-9)
    rank.start("call")
    rank.report(Kind.RAISED, summary="AssertionError: before")
    assert rank.end(-9, 2.0).summary == "AssertionError: before"


def test_a_kept_rank_begins_its_next_case_without_the_last_ones_report(rank: Rank) -> None:
    """A pass must be reported anew for each case; and warnings, of which a rank can make up any number, no more."""
    rank.start("call")
    for number in range(150):
        rank.frames.send(Warned("UserWarning", str(number), "test_a.py", 1))
    rank.report(Kind.PASSED)
    assert rank.record.read(2.0)
    assert (rank.record.outcome().kind, len(rank.record.warnings)) == (Kind.PASSED, 100)
    rank.record.begin_case(None)
    assert not rank.record.warnings
    assert rank.record.reported is None
    assert not rank.record.is_settled
    assert rank.end(3, 3.0).kind is Kind.EXITED
