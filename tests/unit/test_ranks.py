"""The runner's record of one rank, driven as the engine drives it: frames, the end of the process, and a stop."""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.case import Warned
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.rank_messages import (
    INSTRUCTIONS,
    Done,
    FinishWorld,
    RankReport,
    Ready,
    ReportedKind,
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

    def die(self) -> None:
        """Give the record a process that has ended, and whose parent has not asked how."""
        self.record.pid = os.posix_spawnp("true", ["true"], os.environ)
        os.waitid(os.P_PID, self.record.pid, os.WEXITED | os.WNOWAIT)

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
    if rank.record.pid is not None:
        os.waitpid(rank.record.pid, 0)
    rank.channel.close()
    rank.record.channel.close()
    rank.board.close()


_INCOMPLETE = b"\x00\x00\x01\x00\x00\x00{"

# What can happen to a rank or to its record, at a time in seconds.
_STEPS: dict[str, Callable[[Rank, float], object]] = {
    "passed": lambda rank, at_s: rank.report(Kind.PASSED),
    "skipped": lambda rank, at_s: rank.report(Kind.SKIPPED, reason="why"),
    "raised": lambda rank, at_s: rank.report(Kind.RAISED, summary="ValueError: x", text="Traceback", collateral="late"),
    "exited": lambda rank, at_s: rank.report(Kind.EXITED, exit_code=3),
    "done": lambda rank, at_s: rank.send(Done()),
    "incomplete": lambda rank, at_s: rank.channel.sendall(_INCOMPLETE),
    "hang-up": lambda rank, at_s: rank.channel.shutdown(socket.SHUT_WR),
    "dead": lambda rank, at_s: rank.die(),
    "destroy": lambda rank, at_s: rank.board.write(3, "destroy"),
    "finish": lambda rank, at_s: rank.record.instruct(FinishWorld()),
    "stop": lambda rank, at_s: rank.record.stop(Kind.STOPPED, at_s),
    "hang": lambda rank, at_s: rank.record.stop(Kind.HUNG, at_s),
    "expect 3": lambda rank, at_s: rank.record.begin_case(3),
    "expect -9": lambda rank, at_s: rank.record.begin_case(-9),
}


@pytest.mark.parametrize(
    ("steps", "exit_code", "kind", "trouble_s"),
    [
        # Only the complete sequence passes: a rank may end between its test and its clean-up, or crash in it.
        ("passed done", 0, Kind.PASSED, None),
        ("skipped done", 0, Kind.SKIPPED, None),
        ("passed", 0, Kind.EXITED, 9.0),
        ("done", 0, Kind.EXITED, None),
        ("passed", 10, Kind.EXITED, 9.0),
        ("skipped", -6, Kind.SIGNALLED, 9.0),
        ("passed done", -11, Kind.SIGNALLED, 9.0),
        ("skipped done", 1, Kind.EXITED, 9.0),
        # Without a report the end is all that is known.
        ("", 0, Kind.EXITED, 9.0),
        ("", 255, Kind.EXITED, 9.0),
        ("", -signal.SIGKILL, Kind.SIGNALLED, 9.0),
        # A kill during the clean-up, or half a message, does not hide why the rank has failed.
        ("raised", 10, Kind.RAISED, 2.0),
        ("raised", 0, Kind.RAISED, 2.0),
        ("raised stop", -9, Kind.RAISED, 2.0),
        ("raised hang", -11, Kind.RAISED, 2.0),
        ("raised incomplete", -9, Kind.RAISED, 2.0),
        ("incomplete", 0, Kind.UNREADABLE, 9.0),
        ("passed incomplete", 0, Kind.UNREADABLE, 9.0),
        # A peer that fails between two reports is not the first.
        ("raised exited", 10, Kind.EXITED, 2.0),
        # The runner's reason counts, not its SIGKILL nor the signal that asks for stacks; a stopped rank is a victim.
        ("stop", -signal.SIGKILL, Kind.STOPPED, None),
        ("stop", -STACKS_SIGNAL, Kind.STOPPED, None),
        ("hang", -signal.SIGKILL, Kind.HUNG, 2.0),
        ("hang", -STACKS_SIGNAL, Kind.HUNG, 2.0),
        ("hang stop", -9, Kind.HUNG, 2.0),
        # Another signal than the runner's is the rank's own.
        ("stop", -signal.SIGSEGV, Kind.SIGNALLED, None),
        ("hang", -signal.SIGABRT, Kind.SIGNALLED, 2.0),
        # A rank that waited for its peer after its test keeps its outcome, unless it should have ended.
        ("passed stop", -9, Kind.PASSED, None),
        ("passed hang", -9, Kind.PASSED, 3.0),
        ("skipped hang", -9, Kind.SKIPPED, 3.0),
        ("passed destroy stop", -9, Kind.PASSED, None),
        ("passed destroy hang", -9, Kind.HUNG, 4.0),
        ("passed finish hang", -9, Kind.HUNG, 4.0),
        ("passed hang-up stop", -9, Kind.UNREADABLE, 3.0),
        # It had ended by itself, and on a busy machine the runner learns so later.
        ("hang-up dead stop", -9, Kind.SIGNALLED, 2.0),
        ("hang-up dead stop", 0, Kind.EXITED, 2.0),
        ("dead hang", -9, Kind.SIGNALLED, 9.0),
        # The request for stacks wakes a rank up after its deadline.
        ("stop raised", -9, Kind.STOPPED, None),
        ("hang passed", -9, Kind.HUNG, 2.0),
        ("hang skipped", -9, Kind.HUNG, 2.0),
        # A fault that a case expects must happen, and excuses nothing before it.
        ("expect -9", -9, Kind.PASSED, None),
        ("expect 3", 3, Kind.PASSED, None),
        ("expect -9 passed done", 0, Kind.RAISED, 9.0),
        ("expect -9 raised", -9, Kind.RAISED, 3.0),
    ],
)
def test_the_outcome_of_a_rank(rank: Rank, steps: str, exit_code: int, kind: Kind, trouble_s: float | None) -> None:
    """If this fails, a rank that did not end its test passes, a victim is blamed, or a reason of a failure is lost."""
    rank.start("init", "call")
    for at_s, step in enumerate(re.findall(r"expect -?\d|\S+", steps), 2):
        _STEPS[step](rank, at_s)
        if rank.record.channel.fileno() >= 0:
            rank.record.read(at_s)
    outcome = rank.end(exit_code, 9.0)
    assert (outcome.kind, rank.record.first_trouble_s) == (kind, trouble_s)
    assert outcome.phase == ("destroy" if "destroy" in steps and kind is Kind.HUNG else "call")
    match kind:
        case Kind.SIGNALLED:
            assert (outcome.signal, outcome.exit_code) == (-exit_code, None)
        case Kind.EXITED:
            assert outcome.exit_code == (3 if "exited" in steps else exit_code)
        case Kind.SKIPPED:
            assert outcome.reason == "why"
        case Kind.UNREADABLE:
            assert ("incomplete" if "incomplete" in steps else "closed its channel") in outcome.summary
        case Kind.RAISED if "raised" in steps:
            assert (outcome.at_s, rank.record.waited_in_vain) == (trouble_s, True)
            assert (outcome.summary, outcome.text, outcome.collateral) == ("ValueError: x", "Traceback", "late")


def test_the_state_of_a_rank_follows_its_messages(rank: Rank) -> None:
    """If this fails, the engine goes on too early, or waits for a rank that has told all."""
    rank.start("init", "call")
    assert (rank.record.ready_s is not None, rank.record.phase) == (True, "call")
    rank.report(Kind.PASSED)
    assert rank.record.read(2.0)
    assert (rank.record.reported, rank.record.is_settled, rank.record.is_done) == (Kind.PASSED, True, False)
    rank.send(Done())
    assert rank.record.read(3.0)
    assert rank.record.is_done
    rank.channel.close()
    assert not rank.record.read(3.0)
    assert not rank.record.has_ended
    rank.end(0, 4.0)
    assert rank.record.has_ended
    assert not rank.record.waited_in_vain


@pytest.mark.parametrize(
    ("expected", "ignores", "exit_code", "kind"),
    [
        # The engine must not wait for the report of a rank that its case has killed.
        (-9, False, -9, Kind.PASSED),
        (0, False, 0, Kind.PASSED),
        *((*ends, Kind.RAISED) for ends in ((-9, False, -11), (-9, False, 0), (3, False, 4), (0, False, 3))),
        (3, False, -9, Kind.RAISED),
        # A class that judges the ends itself: the other ranks are not stopped.
        *((None, True, exit_code, Kind.EXITED) for exit_code in (0, 3)),
        (None, True, -9, Kind.SIGNALLED),
    ],
)
def test_an_end_is_what_the_case_expects_or_a_failure(
    rank: Rank, expected: int | None, ignores: bool, exit_code: int, kind: Kind
) -> None:
    """If this fails, a rank that ends in another way passes, or the report lacks one of the two exit codes."""
    rank.record.begin_case(expected)
    rank.record.ignores_exits = ignores
    rank.start("call")
    outcome = rank.end(exit_code, 2.0)
    assert outcome.kind is kind
    is_failure = kind is Kind.RAISED
    assert (rank.record.is_settled, rank.record.first_trouble_s) == (not is_failure, 2.0 if is_failure else None)
    assert rank.record.ended_as_expected is (kind is Kind.PASSED)
    if is_failure:
        assert str(abs(expected or 0)) in outcome.summary
        assert str(abs(exit_code)) in outcome.summary


def test_frames_that_remain_in_the_socket_count(rank: Rank) -> None:
    """If this fails, the last report of a rank is lost when the end of its process is seen first."""
    rank.start()
    rank.report(Kind.PASSED)
    rank.send(Done())
    assert rank.end(0, 2.0).kind is Kind.PASSED


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
        b'\x00\x00\x00\x29\x00\x00{"schema":7,"message":"Extra","add_on":3}',
        b'\x00\x00\x00\x1e\x00\x01{"schema":7,"message":"Ready"}',
    ],
    ids=["text", "not JSON", "wrong field", "descriptors"],
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
    assert "\n" not in outcome.summary
    assert "one version of dist_testing" in outcome.text


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


def test_only_an_exit_has_an_exit_code(rank: Rank) -> None:
    """If this fails, other outcomes carry a meaningless exit code."""
    rank.start()
    rank.report(Kind.EXITED, exit_code=3)
    assert rank.end(10, 2.0).exit_code == 3
    with pytest.raises(ValueError, match="kind 'raised' with exit_code 0"):
        RankReport(Kind.RAISED, "call", exit_code=0)
    with pytest.raises(ValueError, match="kind 'exited' with exit_code None"):
        RankReport(Kind.EXITED, "call")


def test_stopping_a_rank_that_has_ended_changes_nothing(rank: Rank) -> None:
    """If this fails, a later stop replaces the rank's own end."""
    rank.start("call")
    rank.end(-11, 2.0)
    rank.record.stop(Kind.HUNG, 3.0)
    assert rank.record.outcome().kind is Kind.SIGNALLED


def test_the_end_of_a_rank_does_not_wait_for_its_children(rank: Rank) -> None:
    """If this fails, a forked child, which holds the rank's channel open, delays the verdict."""
    rank.start("call")
    child = rank.channel.dup()
    with child:
        outcome = rank.end(3, 2.0)
    assert (outcome.kind, outcome.exit_code) == (Kind.EXITED, 3)


def test_a_reset_channel_is_the_end_of_the_stream(rank: Rank) -> None:
    """If this fails, a socket that Linux resets because of unread data causes an error in the runner."""
    rank.start("call")
    rank.record.channel.sendall(b"unread")
    rank.channel.close()
    assert rank.record.read(2.0) is False
    assert rank.record.first_trouble_s == 2.0
    assert rank.record.channel.fileno() < 0


def test_instructions_reach_the_rank(rank: Rank) -> None:
    """If this fails, a rank does not learn that its peers have finished, or a dead rank ends the runner."""
    rank.record.instruct(FinishWorld())
    assert wire.receive(rank.channel, INSTRUCTIONS) == (FinishWorld(), [])
    rank.channel.close()
    rank.record.instruct(FinishWorld())


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
