"""A rank's account of itself: phases and outcomes, sent to the runner the moment they are known."""

from __future__ import annotations

import os
import traceback
import unittest
import warnings
from collections.abc import Callable
from typing import Protocol

from dist_testing.error_text import format_error, message_of, shorten, summarise
from dist_testing.process.frames import FrameKind
from dist_testing.rank.collateral import Collateral, collateral
from dist_testing.skips import skip_for_exit_code

__all__ = ["Board", "Frames", "Reporter"]

# Where torch's collectives are.
_COLLECTIVES = os.path.join("torch", "distributed", "distributed_c10d.py")
# Different ones in one case; the runner keeps no more.
_MAX_WARNINGS = 100


def _operation(error: BaseException) -> str:
    """The collective, or other public operation of torch.distributed, that the error came out of; "" if none."""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.endswith(_COLLECTIVES) and not frame.name.startswith("_"):
            return frame.name
    return ""


class Frames(Protocol):
    """Where a rank's frames go: a `FrameWriter`, or the runner itself if the rank is one of its threads."""

    def send(self, frame: FrameKind, /, **fields: object) -> None:
        """Send one frame."""


class Board(Protocol):
    """Where a rank says what it is doing: a `PhaseBoard`, or the runner itself."""

    def write(self, rank: int, phase: str) -> None:
        """Rank `rank` is now doing `phase`; "" if it is done with the last one."""


class Reporter:
    """What a door tells the runner. The worst outcome counts, so telling more never hides a failure."""

    def __init__(
        self, frames: Frames, board: Board, rank: int, on_failure: Callable[[BaseException], None] | None = None
    ) -> None:
        """Make the account of one rank.

        Args:
            frames: Where it goes.
            board: Where phases go.
            rank: Which rank.
            on_failure: Called with the first exception that is a failure, when it has been told.
        """
        self._frames = frames
        self._board = board
        self._rank = rank
        self._pid = os.getpid()
        self._phase = "start"
        self._warned: list[dict[str, object]] = []
        self._has_reported = False
        self._on_failure = on_failure
        self.failed = False
        # What the test gave to sys.exit; None if it did not.
        self.left_with: int | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this is not the rank, but a process that the test forked from it and that has outrun the test."""
        return os.getpid() != self._pid

    def ready(self) -> None:
        """The rank stands; from now on its time counts."""
        self._frames.send("ready")

    def phase(self, name: str) -> None:
        """The rank moves on to `name`."""
        self._phase = name
        self._board.write(self._rank, name)

    def case_over(self) -> None:
        """The case has ended on this rank; if nothing was wrong with it until now, it has passed."""
        # Before the runner is told: it may look at the board as soon as every rank has.
        self._board.write(self._rank, "")
        if not self._has_reported:
            self._send("passed")
        self._warned = []
        self._has_reported = False

    def skipped(self, reason: str) -> None:
        """The body asked to be skipped."""
        self._send("skipped", reason=reason)

    def raised(self, error: BaseException, text: str | None = None) -> None:
        """The body failed; `text` is the traceback, formatted here if it is not given."""
        self.failed = True
        self._send(
            "raised",
            summary=summarise(error),
            text=format_error(error) if text is None else text,
            collateral=collateral(error),
            operation=_operation(error),
            types=" ".join(f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__),
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
        """The rank leaves by itself, before the test has ended."""
        self.failed = True
        self._send("exited", exit_code=code, summary=summary, text=text)

    def _tell_peers(self, error: BaseException) -> None:
        if self._on_failure is not None:
            callback, self._on_failure = self._on_failure, None
            callback(error)

    def never_started(self, error: BaseException) -> None:
        """Setting the rank up failed before any test code ran."""
        self.failed = True
        self._send("never_started", summary=summarise(error), text=format_error(error))

    def warned(self, warning: warnings.WarningMessage) -> None:
        """Test code has warned of something. That is no outcome."""
        category = f"{warning.category.__module__}.{warning.category.__qualname__}"
        fields = {
            "category": category,
            "text": shorten(message_of(warning.message)),
            "filename": warning.filename,
            "line_number": warning.lineno,
        }
        # A loop that warns in every step has said it once.
        if not self.is_forked and fields not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.append(fields)
            self._frames.send("warning", **fields)

    def end_session(self, reason: str) -> None:
        """Test code wants no further test to run. What that means for this one is told besides."""
        if not self.is_forked:
            self._frames.send("end_session", reason=shorten(reason))

    def done(self) -> None:
        """The last frame."""
        self._frames.send("done")

    def _send(
        self,
        kind: str,
        *,
        reason: str = "",
        summary: str = "",
        text: str = "",
        exit_code: int = 0,
        collateral: Collateral = "",
        operation: str = "",
        types: str = "",
    ) -> None:
        self._has_reported = True
        if self.is_forked:
            # It has the rank's channel, but the rank speaks for itself.
            return
        self._frames.send(
            "outcome",
            kind=kind,
            phase=self._phase,
            reason=shorten(reason),
            summary=summary,
            text=shorten(text),
            exit_code=exit_code,
            collateral=collateral,
            operation=operation,
            types=types,
        )
