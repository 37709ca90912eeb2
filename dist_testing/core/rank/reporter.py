"""Reports a rank's phases and outcomes to the runner as soon as they are known, and asks the runner for the tests."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
import traceback
import unittest
import warnings
from collections.abc import Callable

from dist_testing.core.ground.case import Warned
from dist_testing.core.ground.error_text import MAX_TEXT_CHARS, format_error, message_of, shorten, summarise
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind
from dist_testing.core.ground.skips import skip_for_exit_code
from dist_testing.core.process import wire
from dist_testing.core.process.launcher_messages import text_name
from dist_testing.core.process.rank_messages import (
    INSTRUCTIONS,
    RANK_MESSAGES,
    Done,
    EndSession,
    Extra,
    Importing,
    RankMessage,
    RankReport,
    Ready,
)
from dist_testing.core.rank.collateral import collateral

# The file of torch's collectives.
_COLLECTIVES = os.path.join("torch", "distributed", "distributed_c10d.py")
# Distinct warnings that a rank sends per case. The runner keeps no more.
_MAX_WARNINGS = 100
# Limit of the file with the texts of a rank that are too long for a message. Bytes.
_MAX_FILE_BYTES = 64 << 20


def _operation(error: BaseException) -> str:
    """Return the public operation of torch.distributed, such as a collective, that raised the error; "" if none."""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.endswith(_COLLECTIVES) and not frame.name.startswith("_"):
            return frame.name
    return ""


def send_message(channel: socket.socket, message: RankMessage) -> None:
    """Send one message by the rank's end of its channel. If the runner is gone, no process needs it.

    It blocks until the runner has room, and the runner always reads.
    """
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        wire.send(channel, RANK_MESSAGES, message)


def fit_text(directory: str, rank: int, text: str) -> str:
    """Return the text, or its head and tail if it is too long for a message; then a file gets the whole text."""
    if len(text) > MAX_TEXT_CHARS:
        # The report has the head and the tail in any case.
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(os.path.join(directory, text_name(rank)), flags, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                room = _MAX_FILE_BYTES - file.tell()
                file.write(f"{text}\n\n".encode(errors="backslashreplace")[: max(0, room)])
    return shorten(text)


class RunnerClient:
    """The rank's end of its questions to the runner.

    During a case the runner sends nothing but answers to them, so the answer is the next message in the channel.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        # A test may ask from several threads.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_open = True

    def begin_case(self) -> None:
        """Accept questions again."""
        self._is_open = True

    def end_case(self) -> None:
        """Accept no more questions: from now on, the channel brings other instructions."""
        with self._lock:
            self._is_open = False

    def ask(self, add_on: str, payload: str, subject: str) -> str:
        """Ask the watcher of an add-on, and wait for its answer. Only the add-on reads the question, `payload`.

        `subject` is what the user has called, such as "world.faults". It begins the texts of errors.

        Raises:
            UsageError: If a fork of the rank asks, or the case is over.
            ConnectionResetError: If the runner ends the case meanwhile.
        """
        with self._lock:
            if os.getpid() != self._pid:
                raise UsageError(
                    f"{subject}: asked for by a process that the rank has forked.\n"
                    "The runner answers the rank, and only the rank reads its answers.\n"
                    "Ask for it in the rank's own process."
                )
            if not self._is_open:
                raise UsageError(
                    f"{subject}: asked for after the end of the case.\n"
                    "A thread that the test left behind has called it.\n"
                    "Wait for the thread before the test ends."
                )
            wire.send(self._channel, RANK_MESSAGES, Extra(add_on, payload))
            match wire.receive(self._channel, INSTRUCTIONS):
                case (Extra(add_on=answering, payload=answer), _) if answering == add_on:
                    return answer
        # The runner is gone, or has ended the case: this process is about to be killed.
        raise ConnectionResetError(f"{subject}: the runner does not answer, because it ends the case")


class Reporter:
    """Sends a front end's reports to the runner. The worst outcome counts: a later report never hides a failure."""

    def __init__(
        self,
        send: Callable[[RankMessage], None],
        write_phase: Callable[[int, str], None],
        rank: int,
        on_failure: Callable[[BaseException], None] | None = None,
        *,
        fit: Callable[[str], str] = shorten,
    ) -> None:
        """Make the reporter of one rank.

        `send` takes its messages, and `write_phase` the rank and its new phase, "" if it is done with the last one. It
        calls `on_failure` once, with the first failure, after its report. `fit` makes a text short enough for a
        message.
        """
        self._send_message = send
        self._write_phase = write_phase
        self._rank = rank
        self._pid = os.getpid()
        self._phase = "start"
        self._warned: set[Warned] = set()
        # Whether it has told how the current case ended, so that the others may go on.
        self.has_reported = False
        self._on_failure = on_failure
        self._fit = fit
        self.failed = False
        # Returns the numbers of the current case's expectations that an exception meets.
        self.expected_by: Callable[[BaseException], tuple[int, ...]] = lambda error: ()
        # Returns the properties that the test has recorded; few and short.
        self.recorded: Callable[[], tuple[tuple[str, str], ...]] = tuple
        # The exit code that the test gave to sys.exit; None without such a call.
        self.exit_code: int | None = None
        # Asks the runner; None on a rank that cannot.
        self.runner: RunnerClient | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this process is not the rank, but a fork of it that ran beyond the end of the test that made it."""
        return os.getpid() != self._pid

    def importing(self) -> None:
        """Report that the rank is about to import the tests, which runs test code."""
        self.phase("import")
        self._send_message(Importing())

    def ready(self) -> None:
        """Report that the rank exists. Its time counts from now on."""
        self._send_message(Ready())

    def phase(self, name: str) -> None:
        """Set the rank's phase."""
        self._phase = name
        self._write_phase(self._rank, name)

    def begin_case(self) -> None:
        """Note the begin of a case."""
        if self.runner is not None:
            self.runner.begin_case()

    def case_over(self) -> None:
        """Note the end of the case on this rank. Report a pass if nothing else was reported."""
        if self.runner is not None:
            self.runner.end_case()
        # First, because the runner may read the board as soon as all ranks have reported.
        self._write_phase(self._rank, "")
        if not self.has_reported:
            self._send(RankReport(Kind.PASSED, self._phase))
        self._warned = set()
        self.has_reported = False

    def skipped(self, reason: str) -> None:
        """Report a skip by the test."""
        self._send(RankReport(Kind.SKIPPED, self._phase, reason=shorten(reason)))

    def raised(self, error: BaseException, text: str | None = None, reason: str = "") -> None:
        """Report a failure of the test. `text` is the formatted traceback; by default that of `error`.

        `reason` says why the test itself expects the failure.
        """
        self.failed = True
        self._send(
            RankReport(
                Kind.RAISED,
                self._phase,
                reason=shorten(reason),
                summary=summarise(error),
                text=self._fit(format_error(error) if text is None else text),
                collateral=collateral(error),
                operation=_operation(error),
                types=" ".join(f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__),
                expected_by=self.expected_by(error),
            )
        )
        self._tell_peers(error)

    def ended_by(self, error: BaseException, text: str | None = None, reason: str = "") -> None:
        """Report an exception as a skip, an exit, or a failure.

        `sys.exit` with a code of the skip table is a skip, because test code called it on purpose. With any other
        code, also 0, the rank left before the end of the test.
        """
        if isinstance(error, unittest.SkipTest):
            self.skipped(message_of(error))
            return
        if not isinstance(error, SystemExit):
            self.raised(error, text, reason)
            return
        # `sys.exit("text")` and `sys.exit(True)` exit with code 1. The system keeps the lowest byte of a code.
        code = int(error.code or 0) & 0xFF if error.code is None or isinstance(error.code, int) else 1
        if skip := skip_for_exit_code(code):
            self.skipped(skip.message)
            return
        self.exit_code = code
        self.exited(code, summarise(error), format_error(error) if text is None else text)
        self._tell_peers(error)

    def exited(self, code: int, summary: str, text: str) -> None:
        """Report that the rank exits before the end of the test, with an exit code from 0 to 255."""
        self.failed = True
        self._send(RankReport(Kind.EXITED, self._phase, exit_code=code, summary=summary, text=self._fit(text)))

    def _tell_peers(self, error: BaseException) -> None:
        if self._on_failure is not None:
            callback, self._on_failure = self._on_failure, None
            callback(error)

    def never_started(self, error: BaseException) -> None:
        """Report that the set-up of the rank has failed, so that no code of this test has run on it."""
        self.failed = True
        text = self._fit(format_error(error))
        self._send(RankReport(Kind.NEVER_STARTED, self._phase, summary=summarise(error), text=text))

    def warned(self, warning: warnings.WarningMessage) -> None:
        """Send a warning of test code. A warning is no outcome."""
        category = f"{warning.category.__module__}.{warning.category.__qualname__}"
        warned = Warned(category, shorten(message_of(warning.message)), warning.filename, warning.lineno)
        # A loop may repeat a warning in every step. The runner gets it once.
        if not self.is_forked and warned not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(warned)
            self._send_message(warned)

    def end_session(self, reason: str) -> None:
        """Report that test code wants no further test to run. This test still has a report of its own."""
        if not self.is_forked:
            self._send_message(EndSession(shorten(reason)))

    def extra(self, add_on: str, payload: str) -> None:
        """Tell the watcher of an add-on something. To ask it, use `runner`."""
        if not self.is_forked:
            self._send_message(Extra(add_on, payload))

    def done(self) -> None:
        """Send the last message."""
        self._send_message(Done())

    def _send(self, report: RankReport) -> None:
        self.has_reported = True
        # A fork has the rank's channel, but only the rank itself reports.
        if not self.is_forked:
            self._send_message(dataclasses.replace(report, recorded=self.recorded()))
