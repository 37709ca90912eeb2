"""Ends a stuck runner from a second process, with results, before Bazel kills it.

The runner cannot do that itself: C code that never returns blocks the main thread, and all threads if it holds the
interpreter's lock. Also, an extra thread would make forks of tests unsafe.
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

from dist_testing.core.bazel.conclusion import FAILED, Conclusion
from dist_testing.core.bazel.watch import LIMIT_SIGNAL
from dist_testing.core.engine.report import tidied
from dist_testing.core.engine.stack_dumps import collect_stacks
from dist_testing.core.events.event import Event, EventStream, event_of
from dist_testing.core.process.lifetime import die_with_parent, fork
from dist_testing.core.process.stacks import STACKS_SIGNAL

# Limit for the stacks of the runner. It does not answer if it is stopped or stuck in the kernel. Seconds.
_STACKS_LIMIT_S = 1.0
# The kernel allows at most 24 days for one wait. Seconds.
_LONGEST_POLL_S = 24 * 3600.0
# A time on the monotonic clock, which all processes share.
_TIME = struct.Struct("d")
_NEVER = math.inf
_OVER = math.nan


def watchdog_for(conclusion: Conclusion, events: EventStream, end_s: float | None) -> Watchdog | None:
    """Start a watchdog that ends the run at `end_s`, on the monotonic clock.

    Returns None without such a time, or if the system is not Linux. The watchdog takes the events that the conclusion
    needs; the conclusion must have no results yet.
    """
    if end_s is None or sys.platform != "linux":
        return None
    watchdog = Watchdog(conclusion, end_s)
    events.subscribe(watchdog, *Conclusion.kinds, name="the watchdog")
    return watchdog


class Watchdog:
    """The runner's part of the watchdog, a sink of events. Make it before loading libraries that a fork would harm."""

    def __init__(self, conclusion: Conclusion, end_s: float) -> None:
        """Start the process. It has a copy of the conclusion, and can pass the same events to it."""
        self._runner = os.getpid()
        # In memory: a full disk must not matter, and the events can be large.
        self._record = os.memfd_create("dist_testing-results")
        their_times, self._times = os.pipe()
        stacks, our_stacks = os.pipe()
        # faulthandler writes in the signal handler itself, so also while C code holds the interpreter's lock.
        faulthandler.register(STACKS_SIGNAL, file=our_stacks, all_threads=True)
        self._pid = fork()
        if self._pid == 0:
            os.close(self._times)
            _serve(self._runner, their_times, stacks, self._record, conclusion, end_s)
        os.close(their_times)
        os.close(stacks)

    def remind(self, at_s: float) -> None:
        """Ask for LIMIT_SIGNAL to the runner at this time; infinity for never. The last call counts."""
        if os.getpid() == self._runner:
            # The process was killed, or a test closed the descriptor. Then no reminder is possible.
            with contextlib.suppress(OSError):
                os.write(self._times, _TIME.pack(at_s))

    def stop(self) -> None:
        """End the process: the run is over, and its results are written."""
        self.remind(_OVER)
        # A test may have waited for all children.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def __call__(self, event: Event) -> None:
        """Record an event for the process."""
        with contextlib.suppress(OSError):
            os.write(self._record, json.dumps(event.to_wire(), default=str).encode() + b"\n")


def _serve(runner: int, times: int, stacks: int, record: int, conclusion: Conclusion, end_s: float) -> NoReturn:
    try:
        # Bazel signals the whole process group. If the runner does not react, its deadline still applies.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        die_with_parent(runner)
        if _wait(runner, times, end_s):
            _end_run(runner, stacks, record, conclusion)
    except BaseException:
        traceback.print_exc()
    os._exit(FAILED)


def _wait(runner: int, times: int, end_s: float) -> bool:
    """Send reminders until the run is over (returns False) or its time is over (returns True)."""
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
    """Write the results in place of the runner, then kill it. Its ranks die with it."""
    text = collect_stacks({0: stacks}, lambda: os.kill(runner, STACKS_SIGNAL), _STACKS_LIMIT_S)[0]
    for line in os.pread(record, os.fstat(record).st_size, 0).splitlines():
        if (event := event_of(json.loads(line))) is not None:
            conclusion(event)
    conclusion.interruption = "the target's time was over, and the runner did not react"
    conclusion.where = (
        "It is in C code that never returns, in a call that swallows exceptions, or in a hook or plugin.\n"
        "If nothing there hangs, give the target a larger size or timeout.\n\n"
        f"{tidied(text) or text or 'The runner did not send its stacks: it is stopped, or stuck in the kernel.'}"
    )
    conclusion.conclude(FAILED)
    sys.stdout.flush()
    os.kill(runner, signal.SIGKILL)
