"""Queues processes that share only a file: first come, first served.

A place is one number: the moment at which its owner came, by the clock that all processes of the machine share. The
owner locks the byte of that number. The head of the queue is the process that has locked all bytes before its own.

The kernel releases the locks of a process when it ends, however it ends, so a crash needs no clean-up. Nothing is ever
written to the file, so it can be a device node.

The locks belong to an open file, not to a process (F_OFD_SETLK, Linux 3.15): a fork shares them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from pathlib import Path

# struct flock: type, whence, start, length, pid. A length of 0 reaches to the end of the file, even if it grows.
_FLOCK = struct.Struct("hhqqi4x")
_TO_THE_END = 0
# More nanoseconds than a machine runs.
_LAST = 1 << 62


class Place:
    """A place in the queue of a file, from `Place.take` to `leave`."""

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self._number = number

    @classmethod
    def take(cls, file: Path) -> Place:
        """Take a place at the end; an OSError if the file cannot be opened for both ways, or does not take locks."""
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            number, step = time.monotonic_ns(), 1
            while number < _LAST:
                with contextlib.suppress(BlockingIOError):
                    _lock(fd, fcntl.F_WRLCK, number, 1)
                    return cls(fd, number)
                # Another process has this number; or a faster one has become the head meanwhile; or the head is in a
                # container with another clock. The steps grow, so that few lead past it.
                number, step = max(time.monotonic_ns(), number + step), 2 * step
            raise OSError(errno.EBUSY, "another program has locked it to its end")
        except BaseException:
            _close(fd)
            raise

    def is_head(self) -> bool:
        """Whether all places before this one are left; if so, this is the head until it is left."""
        try:
            _lock(self._fd, fcntl.F_WRLCK, 0, self._number)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        """Leave the queue."""
        _close(self._fd)


def _lock(fd: int, kind: int, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))


def _close(fd: int) -> None:
    # Closing is not enough: a child that was forked meanwhile has the file open, too.
    with contextlib.suppress(OSError):
        _lock(fd, fcntl.F_UNLCK, 0, _TO_THE_END)
    os.close(fd)
