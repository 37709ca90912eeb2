"""What every rank of a world is doing and has done, in memory that it shares with the runner.

A phase changes several times in a case. As messages these changes were most of what woke the runner up; on the board
they cost a rank a microsecond, wake no process, and are still there when the rank is not.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import mmap
import os
import re
import struct
import time

from dist_testing.events.event import DIGITS, Phase

__all__ = ["ENTRIES", "PhaseBoard"]

# How many phases of a rank the board keeps.
ENTRIES = 32
# How many the rank has written in all.
_COUNT = struct.Struct("<Q")
# When, on the monotonic clock; and what.
_ENTRY = struct.Struct("<d32s")
_RANK_BYTES = _COUNT.size + ENTRIES * _ENTRY.size
_FIRST = "start"
# A rank that claims more than that has scribbled over its count.
_MOST_LOST = 10**9
# A rank can write what it likes, into any place. Only the wording of reports and the times in events depend on it.
_PHASE = re.compile(rb"[a-z ]{1,31}")
_UNKNOWN = "an unknown phase"


class PhaseBoard:
    """A log per rank: the last 32 changes of phase, with their times."""

    def __init__(self, fd: int, world_size: int) -> None:
        """Map a board that `create` has made. Its descriptor may be closed afterwards."""
        self._memory = mmap.mmap(fd, _RANK_BYTES * world_size)

    @staticmethod
    def create(world_size: int) -> int:
        """Make the memory of a board, with every rank in "start" from now. Return a descriptor that processes map."""
        fd = os.memfd_create("dist-testing-phases", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        first = _COUNT.pack(1) + _ENTRY.pack(time.monotonic(), _FIRST.encode())
        os.write(fd, first.ljust(_RANK_BYTES, b"\0") * world_size)
        # A process that reads memory beyond the end of its file is killed, and a rank could shorten the file.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd

    def write(self, rank: int, phase: str) -> None:
        """Note that a rank begins a phase: lower-case letters and spaces, at most 31; "" if nothing is left to do."""
        begin = _RANK_BYTES * rank
        (count,) = _COUNT.unpack_from(self._memory, begin)
        at = begin + _COUNT.size + count % ENTRIES * _ENTRY.size
        # The entry first: a rank that is killed in between has not changed its phase.
        _ENTRY.pack_into(self._memory, at, time.monotonic(), phase.encode())
        _COUNT.pack_into(self._memory, begin, (count + 1) % 2**64)

    def read(self, rank: int) -> str:
        """Return the current or last phase of a rank; "an unknown phase" if it wrote nonsense."""
        count = self.count(rank)
        for number in range(count - 1, count - 1 - ENTRIES, -1):
            at = _RANK_BYTES * rank + _COUNT.size + number % ENTRIES * _ENTRY.size
            if name := _name(_ENTRY.unpack_from(self._memory, at)[1]):
                return name
        return _UNKNOWN

    def count(self, rank: int) -> int:
        """Return the number of changes that a rank claims to have written."""
        (count,) = _COUNT.unpack_from(self._memory, _RANK_BYTES * rank)
        return int(count)

    def phases(self, rank: int, since: int, begin_s: float, end_s: float) -> tuple[tuple[Phase, ...], int]:
        """Return the phases of a rank in a case that is over, in order, and the number of earlier ones that are lost.

        Leaves out entries that cannot be true: no name of a phase, a time outside the case, or one that goes back.

        Args:
            rank: Number of the rank.
            since: Result of `count` when the case began.
            begin_s: When that was, on the monotonic clock.
            end_s: When the case was over.
        """
        count = self.count(rank)
        first = max(since, count - ENTRIES)
        # In the order of writing; copied at once, because the rank may go on.
        begin = _RANK_BYTES * rank + _COUNT.size
        entries = list(_ENTRY.iter_unpack(self._memory[begin : begin + ENTRIES * _ENTRY.size]))
        changes: list[tuple[str, float]] = []
        last_s = begin_s
        for number in range(first, min(count, first + ENTRIES)):
            at_s, padded = entries[number % ENTRIES]
            name = _name(padded)
            # Also false for NaN.
            if name != _UNKNOWN and last_s <= at_s <= end_s:
                last_s = at_s
                changes.append((name, round(at_s, DIGITS)))
        changes.append(("", round(end_s, DIGITS)))
        phases = tuple(Phase(name, at_s, until_s) for (name, at_s), (_, until_s) in itertools.pairwise(changes) if name)
        return phases, min(first - since, _MOST_LOST)

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()


# Few names are written, and many times.
@functools.lru_cache(maxsize=256)
def _name(padded: bytes) -> str:
    """Return the name in an entry: "" for a rank that is done, or "an unknown phase"."""
    text = padded.rstrip(b"\0")
    return text.decode() if not text or _PHASE.fullmatch(text) else _UNKNOWN
