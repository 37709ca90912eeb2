"""What every rank of a world is doing, in memory that it shares with the runner.

A phase changes several times in a case and matters only when something goes wrong. As messages these changes were
most of what woke the runner up; on the board they cost a rank a microsecond, and the last one is still there when the
rank is not.
"""

from __future__ import annotations

import mmap
import os
import re

__all__ = ["PhaseBoard"]

_SLOT_BYTES = 32
# A rank can write what it likes, into any slot. Nothing but the wording of a report depends on it.
_PHASE = re.compile(rb"[a-z ]{1,31}")


class PhaseBoard:
    """One slot per rank."""

    def __init__(self, fd: int, world_size: int) -> None:
        """Map a board that `create` has made.

        Args:
            fd: Its descriptor; may be closed afterwards.
            world_size: Ranks.
        """
        self._memory = mmap.mmap(fd, _SLOT_BYTES * world_size)

    @staticmethod
    def create(world_size: int) -> int:
        """Make the memory of a board: every rank is in "start".

        Returns:
            A descriptor, for the runner and for every rank to map.
        """
        fd = os.memfd_create("dist-testing-phases")
        os.write(fd, b"start".ljust(_SLOT_BYTES, b"\0") * world_size)
        return fd

    def write(self, rank: int, phase: str) -> None:
        """Rank `rank` is now doing `phase`: lower-case letters and spaces, at most 31."""
        slot = _SLOT_BYTES * rank
        self._memory[slot : slot + _SLOT_BYTES] = phase.encode().ljust(_SLOT_BYTES, b"\0")

    def read(self, rank: int) -> str:
        """What rank `rank` said last; "an unknown phase" if it wrote nonsense."""
        slot = _SLOT_BYTES * rank
        text = self._memory[slot : slot + _SLOT_BYTES].rstrip(b"\0")
        return text.decode() if _PHASE.fullmatch(text) else "an unknown phase"

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
