"""Limits the time of code in the runner itself: collection, and tests that are not distributed.

The engine keeps the time of cases on ranks. Here the limit raises an exception in the main thread. The watchdog's
process triggers it by a real-time signal, because SIGALRM and the timers of this process belong to the tests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType

from dist_testing.core.engine.report import tidied
from dist_testing.core.ground.budget import LEAST_S
from dist_testing.core.process.stacks import stack_text

LIMIT_SIGNAL = int(signal.SIGRTMIN) + 9
# The frames of these signal handlers, at the end of a traceback, say nothing.
_SIGNAL_HANDLERS = (__name__, "dist_testing.core.engine.interrupts")


@dataclass(frozen=True, slots=True)
class _Limit:
    end_s: float
    error: Callable[[str], BaseException]


class Watch:
    """Raises an exception in the main thread when the time of a step is over.

    Attributes:
        remind: Has LIMIT_SIGNAL sent to this process at a time on the monotonic clock, in seconds. Until it is set,
            nothing is limited.
        interrupted_at: Stacks of the runner when a watched step was interrupted; "" if none was.
    """

    def __init__(self) -> None:
        self.remind: Callable[[float], None] = lambda at_s: None
        self.interrupted_at = ""
        self._runner = os.getpid()
        self._limit: _Limit | None = None
        signal.signal(LIMIT_SIGNAL, self._at_limit)

    @contextlib.contextmanager
    def until(self, end_s: float, error: Callable[[str], BaseException]) -> Iterator[None]:
        """Limit the time of the body to `end_s`, in seconds on the monotonic clock.

        `error` takes the stacks of all threads, and returns the exception to raise.
        """
        if os.getpid() != self._runner:
            # A rank has inherited this object, but the engine limits its time.
            yield
            return
        self._set(_Limit(end_s, error))
        try:
            yield
        except KeyboardInterrupt as interrupt:
            self.interrupted_at = self.interrupted_at or _stacks(_frames_of(interrupt.__traceback__))
            raise
        finally:
            self._set(None)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the limit while the body runs. At least `LEAST_S` remain afterwards, to report its own limit."""
        limit = self._limit
        self._set(None)
        try:
            yield
        finally:
            if limit is not None:
                self._set(dataclasses.replace(limit, end_s=max(limit.end_s, time.monotonic() + LEAST_S)))

    def _set(self, limit: _Limit | None) -> None:
        self._limit = limit
        self.remind(limit.end_s if limit is not None else math.inf)

    def _at_limit(self, _: int, frame: FrameType | None) -> None:
        limit = self._limit
        # The signal may be late, for a step that has ended; and a child that a test has forked has no limit.
        if limit is None or time.monotonic() < limit.end_s or os.getpid() != self._runner:
            return
        self._limit = None
        raise limit.error(_stacks(traceback.walk_stack(frame)))


def _frames_of(found: TracebackType | None) -> Iterable[tuple[FrameType, int]]:
    """Return the frames of a traceback, the innermost first."""
    frames = list(traceback.walk_tb(found))
    return [frame for frame in reversed(frames) if frame[0].f_globals.get("__name__") not in _SIGNAL_HANDLERS]


def _stacks(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the stacks of all threads in faulthandler's format; `frames` are those of the main thread."""
    texts = [_stack("the main thread", frames)]
    current = sys._current_frames()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.ident in current:
            texts.append(_stack(repr(thread.name), traceback.walk_stack(current[thread.ident])))
    return "\n\n".join(texts)


def _stack(name: str, frames: Iterable[tuple[FrameType, int]]) -> str:
    text = stack_text(f"Thread {name}", frames)
    # Leave out the frames below the test, unless no frame remains.
    return tidied(text) or text
