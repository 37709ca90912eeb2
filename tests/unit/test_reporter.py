"""What a rank says of itself, whatever its test raises."""

from __future__ import annotations

import enum
import os
import select
import socket
import unittest
import warnings
from collections.abc import Iterator
from typing import Any, cast

import pytest

from dist_testing.error_text import MAX_TEXT_CHARS, format_error, summarise
from dist_testing.outcomes import Kind
from dist_testing.process.board import PhaseBoard
from dist_testing.process.frames import FrameWriter
from dist_testing.process.rank_messages import RANK_MESSAGES, Done, RankMessage, RankReport, Ready, Warned
from dist_testing.process.wire import MessageReader
from dist_testing.rank.reporter import Reporter
from dist_testing.skips import TEST_SKIPS


class Channel:
    """Keeps what is sent, and reads it as the runner would."""

    def __init__(self) -> None:
        self.data = b""

    def sendall(self, data: bytes) -> None:
        """As of a socket."""
        self.data += data

    def messages(self) -> list[RankMessage]:
        """All messages so far."""
        reader = MessageReader(RANK_MESSAGES)
        messages = list(reader.feed(self.data))
        assert not reader.is_inside
        return messages

    def report(self) -> RankReport:
        """The only report."""
        (report,) = self.reports()
        return report

    def reports(self) -> list[RankReport]:
        """All reports so far."""
        return [message for message in self.messages() if isinstance(message, RankReport)]


@pytest.fixture
def channel() -> Channel:
    """The wire."""
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
    """The reporter of rank 1 on that wire."""
    return Reporter(FrameWriter(cast(socket.socket, channel)), board, 1)


class BrokenStrError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        """Fails."""
        raise ValueError("no text")


class BrokenReprError(Exception):
    """Neither can its representation."""

    def __repr__(self) -> str:
        """Fails."""
        raise ValueError("no representation")

    __str__ = __repr__


class WrongStrError(Exception):
    """Its text is none."""

    def __str__(self) -> str:
        """Returns what is not a text."""
        return cast(str, 3)


class BrokenNotesError(Exception):
    """Its notes fail when they are looked at."""

    @property
    def __notes__(self) -> list[str]:
        raise ValueError("no notes")


class BrokenSkip(unittest.SkipTest):
    """A skip whose reason cannot be had."""

    def __str__(self) -> str:
        """Fails."""
        raise ValueError("no reason")


class Code(enum.IntEnum):
    """Exit codes with names, as pytest's."""

    WRONG = 3


def caught(error: BaseException) -> BaseException:
    """The same error, with a traceback."""
    try:
        raise error
    except BaseException as raised:
        return raised


def test_phases_are_on_the_board_and_travel_with_the_outcome(
    reporter: Reporter, channel: Channel, board: PhaseBoard
) -> None:
    """Where it happened is half of what a failure says."""
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


def test_a_case_with_nothing_wrong_has_passed(reporter: Reporter, channel: Channel) -> None:
    """The only way to a pass is the end of the case."""
    reporter.case_over()
    assert channel.report().kind is Kind.PASSED
    assert not reporter.failed


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), unittest.SkipTest("y")], ids=repr)
def test_the_end_of_a_case_takes_nothing_back(reporter: Reporter, channel: Channel, error: BaseException) -> None:
    """A pass after a failure would be the lie that matters most."""
    reporter.ended_by(error)
    reporter.case_over()
    assert channel.report().kind is not Kind.PASSED


def test_the_next_case_of_a_kept_rank_starts_afresh(reporter: Reporter, channel: Channel) -> None:
    """One report per case, or the runner would wait for ever for the second."""
    reporter.skipped("not this one")
    reporter.case_over()
    reporter.case_over()
    assert [report.kind for report in channel.reports()] == [Kind.SKIPPED, Kind.PASSED]


def test_a_given_text_takes_the_place_of_the_traceback(reporter: Reporter, channel: Channel) -> None:
    """Both pytest and unittest print failures better than a plain traceback."""
    reporter.ended_by(caught(AssertionError("1 == 2")), "E  assert 1 == 2")
    assert channel.report().text == "E  assert 1 == 2"


@pytest.mark.parametrize(
    "error",
    [BrokenStrError("x"), BrokenReprError("x"), WrongStrError("x"), BrokenNotesError("x")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_cannot_be_printed_is_still_a_failure_with_its_name(
    reporter: Reporter, channel: Channel, error: Exception
) -> None:
    """Printing runs test code; if that fails, the failure itself must not be lost."""
    reporter.ended_by(caught(error))
    report = channel.report()
    assert report.kind is Kind.RAISED
    assert report.summary.startswith(type(error).__name__)
    assert "in caught" in report.text
    assert type(error).__name__ in report.text


def test_an_error_in_the_cause_does_not_hide_the_error(reporter: Reporter, channel: Channel) -> None:
    """Chained exceptions are printed too."""
    error = ValueError("visible")
    error.__cause__ = BrokenStrError()
    reporter.ended_by(caught(error))
    assert channel.report().summary == "ValueError: visible"
    assert "visible" in channel.report().text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit(), MemoryError()], ids=repr)
def test_every_other_exception_is_a_failure(reporter: Reporter, channel: Channel, error: BaseException) -> None:
    """Also those that `except Exception` does not see."""
    reporter.ended_by(error)
    assert channel.report().kind is Kind.RAISED
    assert channel.report().summary == type(error).__name__
    assert reporter.failed


@pytest.mark.parametrize("reason", ["", "one", "two\nlines"])
def test_a_skip_is_told_with_its_reason(reporter: Reporter, channel: Channel, reason: str) -> None:
    """The runner compares the reasons of all ranks."""
    reporter.phase("setup")
    reporter.ended_by(unittest.SkipTest(reason))
    report = channel.report()
    assert (report.kind, report.reason, report.phase) == (Kind.SKIPPED, reason, "setup")
    assert not reporter.failed


def test_a_skip_without_a_readable_reason_is_still_reported(reporter: Reporter, channel: Channel) -> None:
    """An exception out of here ends the rank like a crash, and the log shows a traceback of ours."""
    reporter.ended_by(BrokenSkip("x"))
    assert channel.report().kind in (Kind.SKIPPED, Kind.RAISED)


@pytest.mark.parametrize("name", list(TEST_SKIPS))
def test_leaving_with_a_code_of_the_table_is_a_skip(reporter: Reporter, channel: Channel, name: str) -> None:
    """That is how torch's own decorators skip."""
    reporter.ended_by(SystemExit(TEST_SKIPS[name].exit_code))
    report = channel.report()
    assert (report.kind, report.reason) == (Kind.SKIPPED, TEST_SKIPS[name].message)
    assert not reporter.failed


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (None, 0),
        (0, 0),
        (1, 1),
        (3, 3),
        (10, 10),
        (-1, 255),
        (-9, 247),
        (256, 0),
        (259, 3),
        (71, 71),
        (90, 90),
        ("text", 1),
        ("", 1),
        (2.5, 1),
        (Code.WRONG, 3),
        (False, 0),
        (True, 1),
    ],
    ids=repr,
)
def test_leaving_in_any_other_way_is_an_exit(reporter: Reporter, channel: Channel, code: object, expected: int) -> None:
    """Also with 0: the test had not ended. `sys.exit(not ok)` is an everyday form, and -9 is no signal."""
    reporter.ended_by(caught(SystemExit(code)))
    report = channel.report()
    assert (report.kind, report.exit_code) == (Kind.EXITED, expected)
    assert "in caught" in report.text
    assert reporter.failed


def test_an_error_about_a_peer_is_marked(reporter: Reporter, channel: Channel) -> None:
    """By the rank, which still has the exception and not only its text."""
    reporter.raised(RuntimeError("Connection closed by peer"))
    assert channel.report().collateral == "lost"


def test_a_rank_that_could_not_be_set_up_says_why(reporter: Reporter, channel: Channel) -> None:
    """No test code has run, so this is the machine's fault or ours."""
    reporter.never_started(caught(OSError(28, "No space left on device")))
    report = channel.report()
    assert (report.kind, report.phase) == (Kind.NEVER_STARTED, "start")
    assert report.summary == "OSError: [Errno 28] No space left on device"
    assert reporter.failed


def test_a_giant_text_is_cut_to_fit(reporter: Reporter, channel: Channel) -> None:
    """An assertion over a large tensor prints megabytes."""
    reporter.raised(AssertionError("x"), "\N{PILE OF POO}" * (4 * MAX_TEXT_CHARS))
    assert "characters left out" in channel.report().text


def test_a_giant_reason_is_cut_to_fit(reporter: Reporter, channel: Channel) -> None:
    """Reasons are texts too."""
    reporter.skipped("\N{PILE OF POO}" * (4 * MAX_TEXT_CHARS))
    assert "characters left out" in channel.report().reason


def test_text_that_no_encoding_has_is_sent(reporter: Reporter, channel: Channel) -> None:
    """Names of files hold lone surrogates where their bytes are no UTF-8."""
    reporter.raised(ValueError("file \udcff\x00"))
    assert channel.report().summary == "ValueError: file \udcff\x00"


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
def test_a_summary_is_one_line(error: BaseException, expected: str) -> None:
    """It stands in a line of its own in every list."""
    assert summarise(error) == expected


def test_a_long_summary_is_cut_and_stays_one_line() -> None:
    """Some errors carry pages."""
    line = summarise(ValueError("x" * 10_000))
    assert len(line) < 400
    assert "\n" not in line
    assert "characters left out" in line


def test_a_traceback_shows_causes_and_notes() -> None:
    """What Python prints is what people know."""
    error: Any = caught(ValueError("late"))
    error.__cause__ = caught(KeyError("early"))
    # What `add_note` does, where Python has it.
    error.__notes__ = ["a note"]
    text = format_error(error)
    assert text.index("early") < text.index("direct cause") < text.index("ValueError: late") < text.index("a note")


def test_a_child_of_the_rank_does_not_speak_for_it(board: PhaseBoard) -> None:
    """It has the rank's channel; what goes wrong in it would be the rank's failure, or its pass."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reporter = Reporter(FrameWriter(theirs), board, 1)
        pid = os.fork()
        if pid == 0:
            try:
                reporter.raised(ValueError("the child's"))
                reporter.case_over()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert not select.select([ours], [], [], 0)[0]


def test_warnings_are_told_once_and_not_any_number(reporter: Reporter, channel: Channel) -> None:
    """A loop that warns in every step would fill the runner's time and memory."""
    for number in (0, 0, *range(150)):
        reporter.warned(warnings.WarningMessage(UserWarning(str(number)), UserWarning, "test_a.py", 1))
    warned = [message for message in channel.messages() if isinstance(message, Warned)]
    assert [message.text for message in warned] == [str(number) for number in range(100)]


def test_peers_are_told_of_the_first_failure_only(channel: Channel, board: PhaseBoard) -> None:
    """The teardown often fails because the test did, and would be given as the reason for their end."""
    told: list[BaseException] = []
    reporter = Reporter(FrameWriter(cast(socket.socket, channel)), board, 1, told.append)
    first = ValueError("first")
    reporter.raised(first)
    reporter.raised(ValueError("second"))
    assert told == [first]
