"""Reads what ranks print while they print it. Their logs are written as always; this reads along."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["LiveOutput"]

# <sys/inotify.h>
_IN_MODIFY = 0x2
# A line that does not end is shown in pieces of this size. Bytes.
_MAX_LINE_BYTES = 1 << 16


class LiveOutput:
    """Reads the logs of a world's ranks and hands on whole lines, each rank's in order.

    The kernel says when a log has grown, so nothing is polled and no rank waits for the terminal. Where it cannot
    say so (not on Linux, or no watch is left) the lines come when the case is over.
    """

    def __init__(self, directory: Path, size: int, tell: Callable[[int, str], None]) -> None:
        """Begin to read.

        Args:
            directory: The world's folder, where its ranks make their logs.
            size: Ranks in the world.
            tell: Given each line: its rank, and the text.
        """
        self._logs = [directory / f"rank-{rank}.log" for rank in range(size)]
        self._read_bytes = [0] * size
        self._open_lines = [b""] * size
        self._tell = tell
        self._inotify = _watch(directory)

    def fileno(self) -> int:
        """For polling: readable when there is more; -1 where that cannot be known."""
        return self._inotify

    def pump(self) -> None:
        """Hand on what there is by now."""
        if self._inotify >= 0:
            # The events say no more than that there are some.
            with contextlib.suppress(BlockingIOError):
                while os.read(self._inotify, 1 << 16):
                    continue
        for rank in range(len(self._logs)):
            self._read(rank)

    def finish(self) -> None:
        """A case is over: hand on the rest, also lines that have not been ended."""
        self.pump()
        for rank, rest in enumerate(self._open_lines):
            if rest:
                self._open_lines[rank] = b""
                self._line(rank, rest)

    def close(self) -> None:
        """Read no more."""
        if self._inotify >= 0:
            os.close(self._inotify)
            self._inotify = -1

    def _read(self, rank: int) -> None:
        try:
            file = self._logs[rank].open("rb")
        except FileNotFoundError:
            # The rank has not got as far as opening it.
            return
        with file:
            # What comes while this is read rings again.
            left = os.fstat(file.fileno()).st_size - self._read_bytes[rank]
            file.seek(self._read_bytes[rank])
            while left > 0 and (data := file.read(min(left, _MAX_LINE_BYTES))):
                left -= len(data)
                self._read_bytes[rank] += len(data)
                *lines, rest = (self._open_lines[rank] + data).split(b"\n")
                if len(rest) >= _MAX_LINE_BYTES:
                    lines.append(rest)
                    rest = b""
                self._open_lines[rank] = rest
                for line in lines:
                    self._line(rank, line)

    def _line(self, rank: int, line: bytes) -> None:
        self._tell(rank, line.decode(errors="replace").rstrip("\r"))


def _watch(directory: Path) -> int:
    """A descriptor that becomes readable when a file in the folder grows; -1 if there can be none."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(directory), _IN_MODIFY) < 0:
            os.close(descriptor)
            descriptor = -1
    except AttributeError:
        # Not Linux.
        return -1
    return descriptor
