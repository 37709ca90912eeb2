"""Keeps the logs of ranks within a limit while the ranks write them.

A rank writes to its own file at the end, without a limit. When a log is too long, the runner frees the blocks between
its beginning and its end: the file keeps its length, and the rank notices nothing.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import stat
from pathlib import Path

from dist_testing.core.engine.hooks import WatchedWorld, WorldWatcher
from dist_testing.core.engine.rank_logs import open_regular
from dist_testing.core.ground.case import CaseResult

# <linux/falloc.h>
_KEEP_SIZE = 0x1
_PUNCH_HOLE = 0x2
# Limit of all logs of a world on disk, and limits of a single one. Bytes.
_WORLD_BYTES = 512 << 20
_LEAST_BYTES = 4 << 20
_MOST_BYTES = 64 << 20
# Parts of a log's limit that stay at its beginning and, at least, at its end.
_PARTS = 4
# Blocks of every file system are a divisor of this. Bytes.
_ALIGNED = 1 << 20
# Seconds between two looks at the logs; and where one is growing fast.
_LOOK_S = 1.0
_NEXT_LOOK_S = 0.05

_libc = ctypes.CDLL(None, use_errno=True)


class LogLimits(WorldWatcher):
    """Keeps the logs of a world's ranks within a limit."""

    def __init__(self, world: WatchedWorld) -> None:
        """Watch the ranks' logs, which need not exist yet."""
        super().__init__(world)
        self._logs = logs = world.logs
        self.limit_bytes = max(_LEAST_BYTES, min(_MOST_BYTES, _WORLD_BYTES // max(1, len(logs))))
        self._kept_bytes = self.limit_bytes // _PARTS // _ALIGNED * _ALIGNED
        # Where the hole of each log ends; and what a log has lost where the file system makes no holes.
        self._hole_ends = [0] * len(logs)
        self._lost_bytes = [0] * len(logs)
        self._sizes = [0] * len(logs)
        self.next_s = 0.0

    def poll(self, now_s: float) -> None:
        """Shorten the logs that are too long."""
        if now_s < self.next_s:
            return
        grown = 0
        for rank, path in enumerate(self._logs):
            try:
                status = os.lstat(path)
            except OSError:
                # The rank has not opened it yet.
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            grown = max(grown, status.st_size - self._sizes[rank])
            self._sizes[rank] = status.st_size
            if status.st_size - self._hole_ends[rank] + self._kept_bytes > self.limit_bytes:
                self._shorten(rank, path, status.st_size)
        self.next_s = now_s + (_NEXT_LOOK_S if grown > self._kept_bytes else _LOOK_S)

    def explain(self, result: CaseResult) -> CaseResult:
        """Return the result with the notes."""
        return dataclasses.replace(result, notes=(*result.notes, *self.notes()))

    def notes(self) -> list[str]:
        """Return a sentence about each log that was shortened."""
        return [
            f"Rank {rank} has written {(size + lost) / 1e6:.0f} MB; of its output, only "
            f"{f'the first {self._kept_bytes >> 20} MiB and the end were' if not lost else 'the end was'} kept."
            for rank, (size, hole, lost) in enumerate(zip(self._sizes, self._hole_ends, self._lost_bytes, strict=True))
            if hole or lost
        ]

    def _shorten(self, rank: int, path: Path, size: int) -> None:
        begin = self._kept_bytes
        end = (size - self._kept_bytes) // _ALIGNED * _ALIGNED
        try:
            with open_regular(path, os.O_RDWR) as file:
                try:
                    _punch(file.fileno(), begin, end - begin)
                    self._hole_ends[rank] = end
                except OSError:
                    # There are no holes here. The rank writes at the end of the file, wherever that is.
                    os.ftruncate(file.fileno(), 0)
                    self._lost_bytes[rank] += size
                    self._sizes[rank] = self._hole_ends[rank] = 0
        except OSError:
            # A test has replaced the log. Its output goes elsewhere.
            return


def _punch(fd: int, begin: int, length: int) -> None:
    """Free the blocks of a part of a file, which then reads as zeros. An error says that this is not supported."""
    if _libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(begin), ctypes.c_int64(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
