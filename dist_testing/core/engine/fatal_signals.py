"""Finds a rank that a fatal signal has reached, and that does not end: the handler of the signal waits for a lock.

torch prints native stacks in its handler, and that takes memory. If the signal comes while the allocator is locked, as
when the C library finds a damaged heap, the handler waits for ever, and the rank hangs.
"""

from __future__ import annotations

import signal

from dist_testing.core.ground.procfs import blocked_signals, stat_of, threads_of

# The kernel blocks a signal while its handler runs. Threads of libraries block many signals, or all.
_NUMBER_OF_BIT = {
    1 << (number - 1): int(number)
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
}
_FATAL = sum(_NUMBER_OF_BIT)
# A thread that also runs, or that a debugger has stopped, is not blocked.
_ASLEEP = ("S", "D")


def handled_signal(pid: int | None) -> int | None:
    """Return the fatal signal in whose handler a thread of a process seems to sleep; None if there is none.

    A thread that has blocked one of these signals by itself looks the same.
    """
    for thread in threads_of(pid):
        number = _NUMBER_OF_BIT.get(blocked_signals(pid, thread) & _FATAL)
        if number is not None and "".join(stat_of(pid, thread)[:1]) in _ASLEEP:
            return number
    return None
