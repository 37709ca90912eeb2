"""Finds ranks that a fatal signal has reached, and that cannot end: the handler of the signal waits for a lock.

torch prints native stacks in its handler, and that takes memory. If the signal comes while the allocator is locked, as
when the C library finds a damaged heap, the handler waits for ever. The rank would count as hung, at the deadline.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from dist_testing.engine.rank_record import RankRecord
from dist_testing.procfs import STOPPED, activity_of, blocked_signals, threads_of

# A handler blocks the signal that it handles, and no other. Threads of libraries block many signals, or all.
_SIGNAL_OF_MASK = {
    1 << (number - 1): int(number)
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
}
# Seconds between two looks, and without CPU time in a handler. torch's own waits in it end after two seconds.
_LOOK_S = 1.0
_SILENT_S = 5.0
# A look at many ranks with many threads takes long: then looks are rarer, so that they cost at most 2% of the time.
_TIMES_REST = 50


class _Handling(NamedTuple):
    """A thread that runs the handler of a fatal signal, and the CPU time of its process so far, in clock ticks."""

    thread: str
    number: int
    ticks: int


class CrashWatch:
    """Looks at the ranks of one world.

    Attributes:
        next_look_s: When to look again, on the monotonic clock.
    """

    def __init__(self, records: Sequence[RankRecord]) -> None:
        self.next_look_s = time.monotonic() + _LOOK_S
        self._records = records
        # Rank to what it does, and since when.
        self._since: dict[int, tuple[_Handling, float]] = {}

    def look(self, now_s: float) -> list[tuple[RankRecord, int]]:
        """Return the ranks that are in such a handler, each with the signal's number, if one has stood still for long.

        All of them: ranks that crash together must not be told as one that crashed and others that it left waiting.
        """
        began_s = time.monotonic()
        is_long = False
        for record in self._records:
            handling = None if record.has_ended else _handling(record.pid)
            if handling is None:
                self._since.pop(record.rank, None)
                continue
            known, since_s = self._since.get(record.rank, (None, now_s))
            if handling != known:
                self._since[record.rank] = (handling, now_s)
            else:
                is_long |= now_s - since_s >= _SILENT_S
        self.next_look_s = now_s + max(_LOOK_S, _TIMES_REST * (time.monotonic() - began_s))
        return [(self._records[rank], known.number) for rank, (known, _) in self._since.items()] if is_long else []


def _handling(pid: int | None) -> _Handling | None:
    """Return what thread of a process runs the handler of a fatal signal; None if there is none."""
    for thread in threads_of(pid):
        if (number := _SIGNAL_OF_MASK.get(blocked_signals(pid, thread))) is not None:
            activity = activity_of(pid)
            if activity is None or activity.state in STOPPED:
                # A debugger has stopped the process, or it has ended.
                return None
            return _Handling(thread, number, activity.ticks)
    return None
