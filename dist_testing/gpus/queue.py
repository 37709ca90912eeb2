"""First come, first served, among processes that share nothing but a file, each for some of several things.

The file has a lane for each thing. A place is one number, and the byte of that number is locked in the lane of each
thing that its owner may get: the first number that is behind everybody in all of those lanes. Two places that have a
lane in common have different numbers, so they are in the same order in every lane, and nobody can wait for each other
in a circle. The head of a lane is whoever has locked everything before its own byte there. Who has no lane in common
does not wait for each other.

The kernel gives up a process's locks when it ends, however it ends, so nobody has to clean up after a crash, and
nothing is ever written to the file: a device node serves as well as any other.

The locks are those of an open file, not of a process (F_OFD_SETLK, Linux 3.15): a fork shares them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path

__all__ = ["RankInfo"]

# struct flock: type, whence, start, length, pid. A length of 0 reaches to the end, wherever that is.
_FLOCK = struct.Struct("hhqqi4x")
_TO_THE_END = 0
# Bytes of a lane: nobody gets so far behind while the queue is never empty.
_LANE = 1 << 32


class RankInfo:
    """A place in the lanes of a file, from `RankInfo.take` to `leave`."""

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self._number = number

    @classmethod
    def take(cls, file: Path, lanes: Iterable[int]) -> RankInfo:
        """Stand at the end of these lanes, small numbers from 0.

        Raises:
            OSError: If the file cannot be opened for reading and writing, or does not take locks.
        """
        # In one order for everybody: of those who come at once, one gets through.
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
                    # Somebody who has come at the same moment is in the way.
                    _unlock(fd)
                else:
                    return cls(fd, number)
        except BaseException:
            _close(fd)
            raise

    def is_head(self, lane: int) -> bool:
        """Whether everybody who came to a lane of this place earlier has left; then this is its head to the end."""
        if self._number == 0:
            return True
        try:
            _lock(self._fd, lane * _LANE, self._number)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        """Let the next ones be head."""
        _close(self._fd)


def _lock(fd: int, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))


def _unlock(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, _TO_THE_END, 0))


def _close(fd: int) -> None:
    # Not by closing alone: a child that was forked meanwhile has the file open.
    with contextlib.suppress(OSError):
        _unlock(fd)
    os.close(fd)


def _first_free(fd: int, lane: int, number: int) -> int:
    """The first number, from `number` on, after all that anybody has locked in a lane."""
    low = high = number
    # By halves: the kernel walks through everybody's locks at every question.
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
    """The end of one of the locks that there are in a lane from a number on; 0 if there are none."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, lane * _LANE + number, _LANE - number, 0)
    kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        return 0
    end = int(start) + int(length) - lane * _LANE
    if length == _TO_THE_END or end >= _LANE // 2:
        raise OSError(errno.EBUSY, "another program has locked it to its end")
    return end
