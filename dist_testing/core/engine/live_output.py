"""Reads the logs of ranks while the ranks write them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from dist_testing.core.engine.rank_logs import open_regular
from dist_testing.core.process.files import log_name

# <sys/inotify.h>
_IN_MODIFY = 0x2
# A line that does not end is shown in pieces of this size. Bytes.
_MAX_LINE_BYTES = 1 << 16


class LiveOutput:
    """Reads the logs of a world's ranks and passes on whole lines, those of each rank in order.

    The kernel reports when a log grows, so this does not poll, and no rank waits for the terminal. If it has no inotify
    watch left, the lines come when the case is over.
    """

    def __init__(self, directory: Path, size: int, tell: Callable[[int, str], None]) -> None:
        """Start to watch the logs in the folder of a world. `tell` takes the rank and the text of each line."""
        self._logs = [directory / log_name(rank) for rank in range(size)]
        self._read_bytes = [0] * size
        self._open_lines = [b""] * size
        self._tell = tell
        self._inotify = _watch(directory)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a log has grown; -1 if the kernel does not report it."""
        return self._inotify

    def pump(self) -> None:
        """Pass on all new lines."""
        if self._inotify >= 0:
            # The content of the kernel's events is not needed.
            with contextlib.suppress(BlockingIOError):
                while os.read(self._inotify, 1 << 16):
                    continue
        for rank in range(len(self._logs)):
            self._read(rank)

    def finish(self) -> None:
        """Pass on the rest at the end of a case, also lines without an end."""
        self.pump()
        for rank, rest in enumerate(self._open_lines):
            if rest:
                self._open_lines[rank] = b""
                self._line(rank, rest)

    def close(self) -> None:
        """Stop watching."""
        if self._inotify >= 0:
            os.close(self._inotify)
            self._inotify = -1

    def _read(self, rank: int) -> None:
        try:
            file = open_regular(self._logs[rank])
        except OSError:
            # The rank has not opened its log yet, or a test has replaced it.
            return
        with file:
            # The kernel reports later output again.
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
    """Return a descriptor that becomes readable when a file in the folder grows; -1 if the kernel has none left."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(directory), _IN_MODIFY) < 0:
        os.close(descriptor)
        return -1
    return descriptor
