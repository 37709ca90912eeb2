"""A second process that knows how the run is going: it ends a runner that is stuck, with results, before Bazel does.

The runner cannot do that itself: C code that does not return keeps the main thread from everything, and if it holds the
interpreter's lock, other threads as well. And a thread would be one too many for tests that fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import select
import signal
import struct
import sys
import time
import traceback
from typing import NoReturn

from dist_testing.bazel.conclusion import FAILED, Conclusion
from dist_testing.bazel.watch import LIMIT_SIGNAL
from dist_testing.engine.report import tidied
from dist_testing.engine.stack_dumps import collect_stacks
from dist_testing.events.event import Event
from dist_testing.events.stream import EventStream
from dist_testing.events.wire import event_of
from dist_testing.process.lifetime import die_with_parent, fork
from dist_testing.process.stacks import STACKS_SIGNAL

__all__ = ["Watchdog", "watchdog_for"]

# For the stacks of the runner. Only one that is stopped, or stuck in the kernel, does not answer. Seconds.
_STACKS_LIMIT_S = 1.0
# The kernel takes no more than 24 days for one wait. Seconds.
_LONGEST_POLL_S = 24 * 3600.0
# A time on the monotonic clock, which is the same for all processes.
_TIME = struct.Struct("d")
_NEVER = math.inf
_OVER = math.nan


def watchdog_for(conclusion: Conclusion, events: EventStream, end_s: float | None) -> Watchdog | None:
    """Start one, where there is a time to keep and a system that can.

    Args:
        conclusion: Of the run, which has only begun.
        events: Of the run; the process is told of those that the conclusion needs.
        end_s: When a run that is not over is ended, on the monotonic clock; None for never.
    """
    if end_s is None or sys.platform != "linux":
        return None
    watchdog = Watchdog(conclusion, end_s)
    events.subscribe(watchdog, *Conclusion.kinds, name="the watchdog")
    return watchdog


class Watchdog:
    """The runner's end, a sink of events. Use it before anything is loaded that a fork would harm."""

    def __init__(self, conclusion: Conclusion, end_s: float) -> None:
        """Start the process, which has a copy of the conclusion and can give it the same events."""
        self._runner = os.getpid()
        # In memory: it must not fail because a disk is full, and a lot can be in it.
        self._record = os.memfd_create("dist_testing-results")
        their_times, self._times = os.pipe()
        stacks, our_stacks = os.pipe()
        # In the signal handler itself, so also while C code holds the interpreter's lock.
        faulthandler.register(STACKS_SIGNAL, file=our_stacks, all_threads=True)
        self._pid = fork()
        if self._pid == 0:
            os.close(self._times)
            _serve(self._runner, their_times, stacks, self._record, conclusion, end_s)
        os.close(their_times)
        os.close(stacks)

    def remind(self, at_s: float) -> None:
        """Send LIMIT_SIGNAL to the runner at this time; infinity for never. The last call counts."""
        if os.getpid() == self._runner:
            # It has been killed, or a test has closed what is not its own. Then there is nobody to remind.
            with contextlib.suppress(OSError):
                os.write(self._times, _TIME.pack(at_s))

    def stop(self) -> None:
        """The run is over, and its results are written."""
        self.remind(_OVER)
        # A test may have waited for any child there was.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def __call__(self, event: Event) -> None:
        """Keep an event for the process."""
        with contextlib.suppress(OSError):
            os.write(self._record, json.dumps(event.to_wire(), default=str).encode() + b"\n")


def _serve(runner: int, times: int, stacks: int, record: int, conclusion: Conclusion, end_s: float) -> NoReturn:
    """Be the process."""
    try:
        # Bazel signals the whole group. The runner will react; and if not, its time still comes.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        die_with_parent(runner)
        if _wait(runner, times, end_s):
            _end_run(runner, stacks, record, conclusion)
    except BaseException:
        traceback.print_exc()
    os._exit(FAILED)


def _wait(runner: int, times: int, end_s: float) -> bool:
    """Remind the runner when it is time; returns when the run is over, or has to be: whether it has to be."""
    remind_s = _NEVER
    poller = select.poll()
    poller.register(times, select.POLLIN)
    while True:
        left_s = min(remind_s, end_s) - time.monotonic()
        if poller.poll(1000 * min(max(0.0, left_s), _LONGEST_POLL_S)):
            told = os.read(times, select.PIPE_BUF)
            if not told:
                return False
            (remind_s,) = _TIME.unpack(told[-_TIME.size :])
            if math.isnan(remind_s):
                return False
        elif time.monotonic() >= end_s:
            return True
        elif time.monotonic() >= remind_s:
            remind_s = _NEVER
            os.kill(runner, LIMIT_SIGNAL)


def _end_run(runner: int, stacks: int, record: int, conclusion: Conclusion) -> None:
    """Say what is known in the runner's place, then kill it. Its ranks die with it."""
    text = collect_stacks({0: stacks}, lambda: os.kill(runner, STACKS_SIGNAL), _STACKS_LIMIT_S)[0]
    for line in os.pread(record, os.fstat(record).st_size, 0).splitlines():
        if (event := event_of(json.loads(line))) is not None:
            conclusion(event)
    conclusion.interruption = "the target's time was over, and the runner did not react"
    conclusion.where = (
        "It is in C code that does not return, in a call that swallows what is raised, or in a hook or plugin.\n"
        "If nothing there hangs, the target needs a larger size or timeout.\n\n"
        f"{tidied(text) or text or 'The runner does not even say where it is: it was stopped, or the kernel keeps it.'}"
    )
    conclusion.conclude(FAILED)
    sys.stdout.flush()
    os.kill(runner, signal.SIGKILL)
