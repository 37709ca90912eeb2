"""Keeps the current and the past phases of every rank of a world, in memory that the ranks share with the runner.

A phase changes several times in a case. Messages about these changes would wake the runner up more often than all
others. On the board a change costs a rank a microsecond, wakes no process, and can be read after the rank has died.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import re
import struct
import time

from dist_testing.core.ground.record import DIGITS, Phase

# Phases of a rank that the board keeps.
ENTRIES = 32
# Number of phases that the rank has written in all.
_COUNT = struct.Struct("<Q")
# Begin of a phase on the monotonic clock, and its name.
_ENTRY = struct.Struct("<d32s")
_RANK_BYTES = _COUNT.size + ENTRIES * _ENTRY.size
_FIRST = "start"
# A larger number is not true: test code has overwritten the count.
_MOST_LOST = 10**9
# Test code can write any bytes to the board. Only the wording of reports and the times in events depend on it.
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
        `since` is the result of `count` when the case began, at `begin_s`.
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

    def copy(self, rank: int, shift_s: float) -> bytes:
        """Return what a rank has written, for the board of another machine whose clock is `shift_s` seconds later."""
        begin = _RANK_BYTES * rank
        count, entries = self.count(rank), self._memory[begin + _COUNT.size : begin + _RANK_BYTES]
        return _COUNT.pack(count) + b"".join(
            _ENTRY.pack(at_s + shift_s, name) for at_s, name in _ENTRY.iter_unpack(entries)
        )

    def put(self, rank: int, copied: bytes) -> None:
        """Take over what `copy` has returned on another machine; nothing if the size is another."""
        if len(copied) == _RANK_BYTES:
            begin = _RANK_BYTES * rank
            self._memory[begin + _COUNT.size : begin + _RANK_BYTES] = copied[_COUNT.size :]
            # The entries first, as in `write`.
            self._memory[begin : begin + _COUNT.size] = copied[: _COUNT.size]

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()


def _name(padded: bytes) -> str:
    """Return the name in an entry: "" for a rank that is done, or "an unknown phase"."""
    text = padded.rstrip(b"\0")
    return text.decode() if not text or _PHASE.fullmatch(text) else _UNKNOWN
