"""Queues processes that share only a file: first come, first served.

A place is one number. Its owner locks the byte of that number, the first one behind all others. The head of the queue
is the process that has locked all bytes before its own.

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
from pathlib import Path

# struct flock: type, whence, start, length, pid. A length of 0 reaches to the end of the file, even if it grows.
_FLOCK = struct.Struct("hhqqi4x")
_TO_THE_END = 0
# More places than are taken while a queue is never empty. In an empty queue the next place is 0.
_LAST = 1 << 31


class Place:
    """A place in the queue of a file, from `Place.take` to `leave`."""

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self._number = number

    @classmethod
    def take(cls, file: Path) -> Place:
        """Take a place at the end.

        Raises:
            OSError: If the file cannot be opened for reading and writing, or does not take locks.
        """
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            number = 0
            while True:
                number = _first_free(fd, number)
                # Another process may have come at the same moment.
                with contextlib.suppress(BlockingIOError):
                    _lock(fd, number, 1)
                    return cls(fd, number)
        except BaseException:
            _close(fd)
            raise

    def is_head(self) -> bool:
        """Whether all places before this one are left; if so, this is the head until it is left."""
        if self._number == 0:
            return True
        try:
            _lock(self._fd, 0, self._number)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        """Leave the queue."""
        _close(self._fd)


def _lock(fd: int, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))


def _close(fd: int) -> None:
    # Closing is not enough: a child that was forked meanwhile has the file open, too.
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, _TO_THE_END, 0))
    os.close(fd)


def _first_free(fd: int, number: int) -> int:
    """The first number, from `number` on, that is behind all locks."""
    low = high = number
    # By bisection: for each question the kernel walks through all locks. With a step for each process in the queue, a
    # crowd of 500 took minutes.
    while taken := _taken(fd, high):
        low, high = taken, 2 * taken - number
    while low < high:
        middle = (low + high) // 2
        if taken := _taken(fd, middle):
            low = taken
        else:
            high = middle
    return high


def _taken(fd: int, number: int) -> int:
    """The end of one of the locks from a number on; 0 if there are none."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, _TO_THE_END, 0)
    kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        return 0
    end = int(start) + int(length)
    if length == _TO_THE_END or end >= _LAST:
        raise OSError(errno.EBUSY, "another program has locked it to its end")
    return end
