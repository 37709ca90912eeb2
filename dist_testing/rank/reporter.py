"""Tells the runner how a rank's case goes: phases and outcomes, the moment they are known."""

from __future__ import annotations

import os
import traceback
import unittest
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

from dist_testing.error_text import format_error, message_of, shorten, summarise
from dist_testing.outcomes import Kind
from dist_testing.process.rank_messages import Done, EndSession, RankMessage, RankReport, Ready, Warned
from dist_testing.rank.collateral import collateral
from dist_testing.skips import skip_for_exit_code

__all__ = ["Board", "Frames", "Reporter"]

# Where torch's collectives are.
_COLLECTIVES = os.path.join("torch", "distributed", "distributed_c10d.py")
# Distinct warnings in one case; the runner keeps no more.
_MAX_WARNINGS = 100


def _operation(error: BaseException) -> str:
    """The collective, or other public operation of torch.distributed, that the error came out of; "" if none."""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.endswith(_COLLECTIVES) and not frame.name.startswith("_"):
            return frame.name
    return ""


class Frames(Protocol):
    """Takes a rank's messages: a `FrameWriter`, or the runner itself if the rank is one of its threads."""

    def send(self, message: RankMessage) -> None:
        """Send one message."""


class Board(Protocol):
    """Takes a rank's phases: a `PhaseBoard`, or the runner itself."""

    def write(self, rank: int, phase: str) -> None:
        """Rank `rank` is now doing `phase`; "" if it is done with the last one."""


class Reporter:
    """Tells the runner what a front end reports. The worst outcome counts, so telling more never hides a failure."""

    def __init__(
        self, frames: Frames, board: Board, rank: int, on_failure: Callable[[BaseException], None] | None = None
    ) -> None:
        """Make the reporter of one rank.

        Args:
            frames: Takes its messages.
            board: Takes its phases.
            rank: Which rank.
            on_failure: Called with the first exception that is a failure, after the runner has been told.
        """
        self._frames = frames
        self._board = board
        self._rank = rank
        self._pid = os.getpid()
        self._phase = "start"
        self._warned: set[Warned] = set()
        self._has_reported = False
        self._on_failure = on_failure
        self.failed = False
        # Classes of exceptions that the current case expects: a tuple for each of its expectations, by number.
        self.expectations: Sequence[tuple[type, ...]] = ()
        # The exit code that the test gave to sys.exit; None if it did not call it.
        self.left_with: int | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this process is not the rank, but a fork that the test made and that ran on beyond the test."""
        return os.getpid() != self._pid

    def ready(self) -> None:
        """Say that the rank exists; from now on its time counts."""
        self._frames.send(Ready())

    def phase(self, name: str) -> None:
        """Say that the rank moves on to `name`."""
        self._phase = name
        self._board.write(self._rank, name)

    def case_over(self) -> None:
        """The case has ended on this rank; if nothing was wrong with it until now, it has passed."""
        # Before the runner is told: it may look at the board as soon as every rank has.
        self._board.write(self._rank, "")
        if not self._has_reported:
            self._send(RankReport(Kind.PASSED, self._phase))
        self._warned = set()
        self._has_reported = False

    def skipped(self, reason: str) -> None:
        """Say that the test asked to be skipped."""
        self._send(RankReport(Kind.SKIPPED, self._phase, reason=shorten(reason)))

    def raised(self, error: BaseException, text: str | None = None) -> None:
        """Say that the test failed; `text` is the traceback, formatted here if it is not given."""
        self.failed = True
        self._send(
            RankReport(
                Kind.RAISED,
                self._phase,
                summary=summarise(error),
                text=shorten(format_error(error) if text is None else text),
                collateral=collateral(error),
                operation=_operation(error),
                types=" ".join(f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__),
                expected_by=tuple(
                    number for number, classes in enumerate(self.expectations) if isinstance(error, classes)
                ),
            )
        )
        self._tell_peers(error)

    def ended_by(self, error: BaseException, text: str | None = None) -> None:
        """Report an exception by what it means: a skip, an exit, or a failure.

        `sys.exit` with a code of the skip table is a skip, because test code reached it by itself. With any other
        code, also 0, the rank left before the test had ended.
        """
        if isinstance(error, unittest.SkipTest):
            self.skipped(message_of(error))
            return
        if not isinstance(error, SystemExit):
            self.raised(error, text)
            return
        # The interpreter makes 1 of `sys.exit("text")`, and of `sys.exit(True)`; the system keeps the lowest byte.
        code = int(error.code or 0) & 0xFF if error.code is None or isinstance(error.code, int) else 1
        if skip := skip_for_exit_code(code):
            self.skipped(skip.message)
            return
        self.left_with = code
        self.exited(code, summarise(error), format_error(error) if text is None else text)
        self._tell_peers(error)

    def exited(self, code: int, summary: str, text: str) -> None:
        """Say that the rank leaves by itself, before the test has ended, with an exit code from 0 to 255."""
        self.failed = True
        self._send(RankReport(Kind.EXITED, self._phase, exit_code=code, summary=summary, text=shorten(text)))

    def _tell_peers(self, error: BaseException) -> None:
        if self._on_failure is not None:
            callback, self._on_failure = self._on_failure, None
            callback(error)

    def never_started(self, error: BaseException) -> None:
        """Say that the rank could not be set up for its case, so that no code of this test has run on it."""
        self.failed = True
        text = shorten(format_error(error))
        self._send(RankReport(Kind.NEVER_STARTED, self._phase, summary=summarise(error), text=text))

    def warned(self, warning: warnings.WarningMessage) -> None:
        """Hand on a warning of test code. That is no outcome."""
        category = f"{warning.category.__module__}.{warning.category.__qualname__}"
        warned = Warned(category, shorten(message_of(warning.message)), warning.filename, warning.lineno)
        # A loop may warn in every step; the runner hears of it once.
        if not self.is_forked and warned not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(warned)
            self._frames.send(warned)

    def end_session(self, reason: str) -> None:
        """Say that test code wants no further test to run. A report says what became of this one."""
        if not self.is_forked:
            self._frames.send(EndSession(shorten(reason)))

    def done(self) -> None:
        """Send the last message."""
        self._frames.send(Done())

    def _send(self, report: RankReport) -> None:
        self._has_reported = True
        # A fork has the rank's channel, but only the rank itself reports.
        if not self.is_forked:
            self._frames.send(report)
