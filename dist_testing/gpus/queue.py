"""Queues processes that share only a file: first come, first served, each for some of several things.

The file has a lane for each thing. A place is one number. Its owner locks the byte of that number in the lane of each
thing that it may get; it takes the first number that is behind all others in all of those lanes. Two places with a lane
in common have different numbers, so they are in the same order in every lane, and processes cannot wait for each other
in a circle. The head of a lane is the process that has locked all bytes before its own there. Processes without a lane
in common do not wait for each other.

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
from collections.abc import Iterable
from pathlib import Path

# struct flock: type, whence, start, length, pid. A length of 0 reaches to the end of the file, even if it grows.
_FLOCK = struct.Struct("hhqqi4x")
_TO_THE_END = 0
# Bytes of a lane: more places than are taken while a queue is never empty. In an empty lane the next place is 0.
_LANE = 1 << 32


class Place:
    """A place in the lanes of a file, from `Place.take` to `leave`."""

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self._number = number

    @classmethod
    def take(cls, file: Path, lanes: Iterable[int]) -> Place:
        """Take a place at the end of these lanes, which are small numbers from 0.

        Raises:
            OSError: If the file cannot be opened for reading and writing, or does not take locks.
        """
        # All processes use this order, so that one of those that come at the same moment succeeds.
        ordered = sorted(set(lanes))
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            number = 0
            while True:
                for lane in ordered:
                    number = _first_free(fd, lane, number)
                try:
                    for lane in ordered:
                        _lock(fd, lane * _LANE + number, 1)
                except BlockingIOError:
                    # Another process has come at the same moment.
                    _unlock(fd)
                else:
                    return cls(fd, number)
        except BaseException:
            _close(fd)
            raise

    def is_head(self, lane: int) -> bool:
        """Whether all places before this one in a lane are left; if so, this is the head until it is left."""
        if self._number == 0:
            return True
        try:
            _lock(self._fd, lane * _LANE, self._number)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        """Leave all lanes."""
        _close(self._fd)


def _lock(fd: int, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))


def _unlock(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, _TO_THE_END, 0))


def _close(fd: int) -> None:
    # Closing is not enough: a child that was forked meanwhile has the file open, too.
    with contextlib.suppress(OSError):
        _unlock(fd)
    os.close(fd)


def _first_free(fd: int, lane: int, number: int) -> int:
    """The first number, from `number` on, that is behind all locks in a lane."""
    low = high = number
    # By bisection: for each question the kernel walks through all locks. With a step for each process in the lane, a
    # crowd of 500 took minutes.
    while taken := _taken(fd, lane, high):
        low, high = taken, 2 * taken - number
    while low < high:
        middle = (low + high) // 2
        if taken := _taken(fd, lane, middle):
            low = taken
        else:
            high = middle
    return high


def _taken(fd: int, lane: int, number: int) -> int:
    """The end of one of the locks in a lane from a number on; 0 if there are none."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, lane * _LANE + number, _LANE - number, 0)
    kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        return 0
    end = int(start) + int(length) - lane * _LANE
    if length == _TO_THE_END or end >= _LANE // 2:
        raise OSError(errno.EBUSY, "another program has locked it to its end")
    return end
