"""Reads the logs of ranks while the ranks write them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from dist_testing.core.engine.hooks import WorldWatcher
from dist_testing.core.engine.rank_logs import open_regular
from dist_testing.core.process.files import log_name

# <sys/inotify.h>
_IN_MODIFY = 0x2
# A line that does not end is shown in pieces of this size. Bytes.
_MAX_LINE_BYTES = 1 << 16


class LiveOutput(WorldWatcher):
    """Reads the logs of a world's ranks and passes on whole lines, those of each rank in order.

    The kernel reports when a log grows, so this does not poll, and no rank waits for the terminal. If it has no inotify
    watch left, the lines come when the case is over.
    """

    def __init__(self, directory: Path, size: int, take_line: Callable[[int, str], None]) -> None:
        """Start to watch the logs in the folder of a world. `take_line` gets the rank and the text of each line."""
        self._logs = [directory / log_name(rank) for rank in range(size)]
        self._read_bytes = [0] * size
        self._open_lines = [b""] * size
        self._take_line = take_line
        # Readable when a log has grown.
        self.fd = _watch(directory)

    def poll(self, now_s: float) -> None:
        """Pass on all new lines."""
        del now_s
        has_grown = self.fd < 0
        # The content of the kernel's events is not needed.
        with contextlib.suppress(BlockingIOError):
            while self.fd >= 0 and os.read(self.fd, 1 << 16):
                has_grown = True
        if has_grown:
            self._read_all()

    def _read_all(self) -> None:
        for rank in range(len(self._logs)):
            self._read(rank)

    def case_over(self) -> None:
        """Pass on the rest, also lines without an end."""
        self._read_all()
        for rank, rest in enumerate(self._open_lines):
            if rest:
                self._open_lines[rank] = b""
                self._line(rank, rest)

    def close(self) -> None:
        """Pass on the rest and stop watching."""
        self.case_over()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

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
        self._take_line(rank, line.decode(errors="replace").rstrip("\r"))


def _watch(directory: Path) -> int:
    """Return a descriptor that becomes readable when a file in the folder grows; -1 if the kernel has none left."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(directory), _IN_MODIFY) < 0:
        os.close(descriptor)
        return -1
    return descriptor
