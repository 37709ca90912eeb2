"""Limits the time of code in the runner itself: collection, and tests that are not distributed.

The engine keeps the time of cases on ranks. Here the limit raises an exception in the main thread. The watchdog's
process triggers it by a real-time signal, because SIGALRM and the timers of this process belong to the tests.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType

from dist_testing.core.engine.report import tidied
from dist_testing.core.ground.budget import LEAST_S
from dist_testing.core.ground.errors import InterruptedRunError
from dist_testing.core.process.stacks import frames_of_others, stack_text

LIMIT_SIGNAL = int(signal.SIGRTMIN) + 9
# The frames of these signal handlers, at the end of a traceback, say nothing.
_SIGNAL_HANDLERS = (__name__, "dist_testing.core.engine.interrupts")


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
        # When the step that runs has to end, and what makes the exception that ends it. Infinity for no limit.
        self._end_s = math.inf
        self._error: Callable[[str], BaseException] = InterruptedRunError
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
        self._error = error
        self._set(end_s)
        try:
            yield
        except KeyboardInterrupt as interrupt:
            self.interrupted_at = self.interrupted_at or _stacks(_frames_of(interrupt.__traceback__))
            raise
        finally:
            if os.getpid() != self._runner:
                # A test has forked it. It would run the later tests, too, and overwrite the results of the runner.
                if sys.exc_info()[0] is not None:
                    traceback.print_exc(limit=-5)
                text = f"Process {os.getpid()}, which a test has forked, left the test. End it there by os._exit()."
                print(text, file=sys.stderr, flush=True)
                os._exit(1)
            self._set(math.inf)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the limit while the body runs. At least `LEAST_S` remain afterwards, to report its own limit."""
        end_s = self._end_s
        self._set(math.inf)
        try:
            yield
        finally:
            self._set(max(end_s, time.monotonic() + LEAST_S))

    def _set(self, end_s: float) -> None:
        self._end_s = end_s
        self.remind(end_s)

    def _at_limit(self, _: int, frame: FrameType | None) -> None:
        # The signal may be late, for a step that has ended; and a child that a test has forked has no limit.
        if time.monotonic() < self._end_s or os.getpid() != self._runner:
            return
        self._end_s = math.inf
        raise self._error(_stacks(traceback.walk_stack(frame)))


def _frames_of(found: TracebackType | None) -> Iterable[tuple[FrameType, int]]:
    """Return the frames of a traceback, the innermost first."""
    frames = list(traceback.walk_tb(found))
    return [frame for frame in reversed(frames) if frame[0].f_globals.get("__name__") not in _SIGNAL_HANDLERS]


def _stacks(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the stacks of all threads in faulthandler's format; `frames` are those of the main thread."""
    texts = [_stack("the main thread", frames)]
    others = frames_of_others()
    for thread in threading.enumerate():
        if thread.ident in others:
            texts.append(_stack(repr(thread.name), traceback.walk_stack(others[thread.ident])))
    return "\n\n".join(texts)


def _stack(name: str, frames: Iterable[tuple[FrameType, int]]) -> str:
    text = stack_text(f"Thread {name}", frames)
    # Leave out the frames below the test, unless no frame remains.
    return tidied(text) or text
