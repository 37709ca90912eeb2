"""What a rank reports about itself, for every error that its test can raise."""

from __future__ import annotations

import enum
import functools
import os
import select
import socket
import unittest
import warnings
from collections.abc import Iterator
from typing import Any, cast

import pytest

from dist_testing.core.ground.case import Warned
from dist_testing.core.ground.error_text import MAX_TEXT_CHARS, format_error, summarise
from dist_testing.core.ground.outcomes import Kind
from dist_testing.core.ground.skips import TEST_SKIPS
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.rank_messages import RANK_MESSAGES, Done, RankMessage, RankReport, Ready
from dist_testing.core.process.wire import MessageReader
from dist_testing.core.rank.reporter import Reporter, send_message


class Channel:
    """A channel that keeps what is sent, and reads it as the runner would."""

    def __init__(self) -> None:
        self.data = b""

    def settimeout(self, value: None) -> None:
        """Have no limit, as always."""

    def sendall(self, data: bytes, flags: int) -> None:
        """Keep the data, as a socket would send it."""
        self.data += data

    def messages(self) -> list[RankMessage]:
        """All messages so far."""
        reader = MessageReader(RANK_MESSAGES)
        messages = list(reader.feed(self.data))
        assert not reader.is_inside
        return messages

    def reports(self) -> list[RankReport]:
        """All reports so far."""
        return [message for message in self.messages() if isinstance(message, RankReport)]

    def report(self) -> RankReport:
        """The only report."""
        (report,) = self.reports()
        return report


@pytest.fixture
def channel() -> Channel:
    """The channel between the rank and the runner."""
    return Channel()


@pytest.fixture
def board() -> Iterator[PhaseBoard]:
    """The board of a world of two."""
    fd = PhaseBoard.create(2)
    board = PhaseBoard(fd, 2)
    os.close(fd)
    yield board
    board.close()


@pytest.fixture
def reporter(channel: Channel, board: PhaseBoard) -> Reporter:
    """The reporter of rank 1 on that channel."""
    return Reporter(functools.partial(send_message, cast(socket.socket, channel)), board.write, 1)


def _raise(*_: object) -> Any:
    raise ValueError("no text")


# Errors whose texts, representations or notes cannot be read, or have a wrong type.
BrokenStrError = type("BrokenStrError", (Exception,), {"__str__": _raise})
BrokenReprError = type("BrokenReprError", (Exception,), {"__str__": _raise, "__repr__": _raise})
WrongStrError = type("WrongStrError", (Exception,), {"__str__": lambda _: 3})
BrokenNotesError = type("BrokenNotesError", (Exception,), {"__notes__": property(_raise)})
BrokenSkip = type("BrokenSkip", (unittest.SkipTest,), {"__str__": _raise})


class Code(enum.IntEnum):
    """Exit codes with names, like pytest's."""

    WRONG = 3


def caught(error: BaseException) -> BaseException:
    """Return the same error, with a traceback."""
    try:
        raise error
    except BaseException as raised:
        return raised


def test_phases_are_on_the_board_and_in_the_outcome(reporter: Reporter, channel: Channel, board: PhaseBoard) -> None:
    """If this fails, a failure does not say in which phase it happened."""
    reporter.ready()
    reporter.phase("setup")
    reporter.phase("call")
    assert (board.read(0), board.read(1)) == ("start", "call")
    reporter.raised(caught(ValueError("boom")))
    reporter.done()
    assert [type(message) for message in channel.messages()] == [Ready, RankReport, Done]
    report = channel.report()
    assert (report.kind, report.phase, report.summary) == (Kind.RAISED, "call", "ValueError: boom")
    assert "in caught" in report.text
    assert report.text.endswith("ValueError: boom\n")
    assert reporter.failed


def test_only_the_end_of_a_case_reports_a_pass(reporter: Reporter, channel: Channel) -> None:
    """If this fails, a pass follows a failure, or the runner waits for the report of a pooled rank's second case."""
    for error in (ValueError("x"), SystemExit(3), unittest.SkipTest("y")):
        reporter.ended_by(error)
        reporter.case_over()
    reporter.case_over()
    kinds = [report.kind for report in channel.reports()]
    assert kinds == [Kind.RAISED, Kind.EXITED, Kind.SKIPPED, Kind.PASSED]


@pytest.mark.parametrize(
    "error",
    [
        BrokenStrError("x"),
        BrokenReprError("x"),
        WrongStrError("x"),
        BrokenNotesError("x"),
        # `except Exception` does not catch these.
        KeyboardInterrupt(),
        GeneratorExit(),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_other_exception_is_a_failure_with_its_name(
    reporter: Reporter, channel: Channel, error: BaseException
) -> None:
    """If this fails, a failure is lost when its text cannot be printed: printing runs test code."""
    # A cause that cannot be printed does not hide the error.
    error.__cause__ = BrokenStrError()
    reporter.ended_by(caught(error))
    report = channel.report()
    assert report.kind is Kind.RAISED
    assert report.summary.startswith(type(error).__name__)
    assert "in caught" in report.text
    assert type(error).__name__ in report.text
    assert reporter.failed


@pytest.mark.parametrize(
    ("error", "said"),
    [
        *((unittest.SkipTest(reason), reason) for reason in ("", "one", "two\nlines")),
        # torch's own decorators skip by these exit codes.
        *((SystemExit(skip.exit_code), skip.message) for skip in TEST_SKIPS.values()),
    ],
    ids=repr,
)
def test_a_skip_is_reported_with_its_reason(
    reporter: Reporter, channel: Channel, error: BaseException, said: str
) -> None:
    """If this fails, the runner cannot compare the skip reasons of the ranks, or a bad one is like a crash."""
    reporter.phase("setup")
    reporter.ended_by(error)
    report = channel.report()
    assert (report.kind, report.reason, report.phase) == (Kind.SKIPPED, said, "setup")
    assert not reporter.failed
    reporter.ended_by(BrokenSkip("x"))
    assert channel.reports()[-1].kind in (Kind.SKIPPED, Kind.RAISED)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((None, 0), (0, 0), (1, 1), (3, 3), (10, 10), (71, 71), (90, 90)),
        # The kernel keeps one byte of a number.
        *((-1, 255), (-9, 247), (256, 0), (259, 3)),
        *(("text", 1), ("", 1), (2.5, 1), (Code.WRONG, 3), (False, 0), (True, 1)),
    ],
    ids=repr,
)
def test_an_exit_with_any_other_code_is_an_exit(
    reporter: Reporter, channel: Channel, code: object, expected: int
) -> None:
    """If this fails, `sys.exit(0)` in a test that has not ended passes.

    `sys.exit(not ok)` is a common form, and -9 is not a signal here.
    """
    reporter.ended_by(caught(SystemExit(code)))
    report = channel.report()
    assert (report.kind, report.exit_code) == (Kind.EXITED, expected)
    assert "in caught" in report.text
    assert reporter.failed


def test_a_rank_that_could_not_be_set_up_reports_the_reason(reporter: Reporter, channel: Channel) -> None:
    """If this fails, a test is blamed for an error of the machine or of the library: no test code has run."""
    reporter.never_started(caught(OSError(28, "No space left on device")))
    report = channel.report()
    assert (report.kind, report.phase) == (Kind.NEVER_STARTED, "start")
    assert report.summary == "OSError: [Errno 28] No space left on device"
    assert reporter.failed


def test_texts_fit_into_a_report(reporter: Reporter, channel: Channel) -> None:
    """If this fails, a large tensor in an assertion, or a file name that is not UTF-8, breaks the report."""
    huge = "\N{PILE OF POO}" * (4 * MAX_TEXT_CHARS)
    reporter.skipped(huge)
    reporter.raised(RuntimeError("Connection closed by peer"), huge)
    reporter.raised(ValueError("file \udcff\x00"))
    skip, lost, name = channel.reports()
    assert "characters left out" in skip.reason
    # What pytest or unittest wrote is better than the traceback.
    assert lost.text.startswith("\N{PILE OF POO}")
    assert "characters left out" in lost.text
    # The runner gets only a text, and need not guess whether the error is about a peer.
    assert (lost.collateral, name.collateral) == ("lost", "")
    assert name.summary == "ValueError: file \udcff\x00"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), "ValueError"),
        (ValueError("boom"), "ValueError: boom"),
        (ValueError("\n\n  first\nsecond"), "ValueError: first"),
        (ValueError("first\r\nsecond"), "ValueError: first"),
        (ValueError(" \t\n"), "ValueError"),
        (KeyError("key"), "KeyError: 'key'"),
        (BrokenStrError(), "BrokenStrError: <__str__ raised ValueError>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_summary_is_one_short_line(error: BaseException, expected: str) -> None:
    """If this fails, a summary breaks the lists in which it is one line."""
    assert summarise(error) == expected
    long = summarise(ValueError("x" * 10_000))
    assert len(long) < 400
    assert "characters left out" in long


def test_a_traceback_shows_causes_and_notes() -> None:
    """If this fails, a traceback lacks causes or notes, which Python itself prints."""
    error: Any = caught(ValueError("late"))
    error.__cause__ = caught(KeyError("early"))
    # This is what `add_note` does on newer versions of Python.
    error.__notes__ = ["a note"]
    text = format_error(error)
    assert text.index("early") < text.index("direct cause") < text.index("ValueError: late") < text.index("a note")


def test_a_child_of_the_rank_does_not_speak_for_it(board: PhaseBoard) -> None:
    """If this fails, an error in a forked child, which has the rank's channel, counts as the rank's outcome."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reporter = Reporter(functools.partial(send_message, theirs), board.write, 1)
        pid = os.fork()
        if pid == 0:
            try:
                reporter.raised(ValueError("the child's"))
                reporter.case_over()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert not select.select([ours], [], [], 0)[0]


def test_warnings_are_reported_once_and_limited(reporter: Reporter, channel: Channel) -> None:
    """If this fails, a loop that warns in every step fills the runner's time and memory."""
    for number in (0, 0, *range(150)):
        reporter.warned(warnings.WarningMessage(UserWarning(str(number)), UserWarning, "test_a.py", 1))
    warned = [message for message in channel.messages() if isinstance(message, Warned)]
    assert [message.text for message in warned] == [str(number) for number in range(100)]


def test_only_the_first_failure_is_sent_to_peers(channel: Channel, board: PhaseBoard) -> None:
    """If this fails, peers get the failed teardown as the reason, although the test failed first."""
    told: list[BaseException] = []
    reporter = Reporter(functools.partial(send_message, cast(socket.socket, channel)), board.write, 1, told.append)
    first = ValueError("first")
    reporter.raised(first)
    reporter.raised(ValueError("second"))
    assert told == [first]
