"""Finds ranks that a fatal signal has reached, and that cannot end: the handler of the signal waits for a lock.

torch prints native stacks in its handler, and that takes memory. If the signal comes while the allocator is locked, as
when the C library finds a damaged heap, the handler waits for ever. The rank would count as hung, at the deadline.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from dist_testing.engine.rank_record import RankRecord
from dist_testing.procfs import blocked_signals, status_of, threads_of

# The kernel blocks a signal while its handler runs. Threads of libraries block many signals, or all.
_NUMBER_OF_BIT = {
    1 << (number - 1): int(number)
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
}
_FATAL = sum(_NUMBER_OF_BIT)
# Seconds between two looks, and without a change in a handler. torch's own waits in it end after two seconds.
_LOOK_S = 1.0
_SILENT_S = 5.0
# A look at many ranks with many threads takes long: then looks are rarer, so that they cost at most 2% of the time.
_TIMES_REST = 50
# What the frames of a handler take on the stack at most.
_STACK_BYTES = 256 << 10
# What the kernel puts on the stack for a handler, on x86-64, in words of 8 bytes: where the handler returns to, a small
# number, and 0; later the signals that were blocked before.
_MASK_WORD = 38
_MOST_FLAGS = 7
# The code there: `mov $15, %rax; syscall`, the system call `rt_sigreturn`.
_RETURN = bytes.fromhex("48c7c00f0000000f05")


class _Handling(NamedTuple):
    """A thread that sleeps and has a fatal signal blocked, and how often it has stopped to run."""

    thread: str
    number: int
    switches: str


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
        self._told: set[int] = set()

    def look(self, now_s: float) -> list[tuple[RankRecord, int]]:
        """Return the ranks that cannot end, each with the signal's number; each rank once.

        If one has stood still for five seconds, those that have stood still since an earlier look are returned, too:
        ranks that crash together must not be told as one that crashed and others that it left waiting.
        """
        began_s = time.monotonic()
        for record in self._records:
            handling = None if record.has_ended or record.rank in self._told else _handling(record.pid)
            if handling is None:
                self._since.pop(record.rank, None)
            elif handling != self._since.get(record.rank, (None, 0.0))[0]:
                self._since[record.rank] = (handling, now_s)
        found = []
        if any(now_s - since_s >= _SILENT_S for _, since_s in self._since.values()):
            for rank, (handling, since_s) in self._since.items():
                record = self._records[rank]
                if since_s < now_s and _is_in_handler(record.pid, handling):
                    found.append((record, handling.number))
                    self._told.add(rank)
        self.next_look_s = now_s + max(_LOOK_S, _TIMES_REST * (time.monotonic() - began_s))
        return found


def _handling(pid: int | None) -> _Handling | None:
    """Return what thread of a process seems to stand in the handler of a fatal signal; None if there is none."""
    for thread in threads_of(pid):
        if (number := _NUMBER_OF_BIT.get(blocked_signals(pid, thread) & _FATAL)) is not None:
            status = status_of(f"{pid}/task/{thread}")
            # It may also run, or a debugger may have stopped it.
            if status.get("State", "").startswith(("S", "D")):
                counts = (status.get(f"{kind}_ctxt_switches", "") for kind in ("voluntary", "nonvoluntary"))
                return _Handling(thread, number, " ".join(counts))
    return None


def _is_in_handler(pid: int | None, handling: _Handling) -> bool:
    """Return whether the stack of a thread has the frame of a signal; a thread can also block the signal by itself.

    False if the kernel does not let this process read the stack, and on other processors than x86-64.
    """
    bit = 1 << (handling.number - 1)
    try:
        with open(f"/proc/{pid}/task/{handling.thread}/syscall", encoding="utf-8") as call:
            # proc(5): the last fields are the stack pointer and the program counter.
            stack_pointer = int(call.read().split()[-2], 16)
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            stack = os.pread(memory.fileno(), _STACK_BYTES, stack_pointer)
            words = [word for (word,) in struct.iter_unpack("=Q", stack[: len(stack) // 8 * 8])]
            # Where a frame cannot be is found out without a system call.
            return any(
                link == 0 and flags <= _MOST_FLAGS and not mask & bit and _returns_from_handler(memory.fileno(), code)
                for code, flags, link, mask in zip(words, words[1:], words[2:], words[_MASK_WORD:], strict=False)
            )
    except (OSError, IndexError, ValueError):
        return False


def _returns_from_handler(memory: int, code: int) -> bool:
    try:
        return os.pread(memory, len(_RETURN), code) == _RETURN
    except (OSError, OverflowError):
        # No address of the process.
        return False
