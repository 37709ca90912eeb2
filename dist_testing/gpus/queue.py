"""First come, first served, among processes that share nothing but a file.

A place in the queue is a locked byte of the file: the first free one after all that are taken. The head is whoever has
locked everything before its own byte. The kernel gives up a process's locks when it ends, however it ends, so nobody
has to clean up after a crash, and nothing is ever written to the file: a device node serves as well as any other.

The locks are those of an open file, not of a process (F_OFD_SETLK, Linux 3.15): a fork shares them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from pathlib import Path

__all__ = ["Place"]

# struct flock: type, whence, start, length, pid. A length of 0 reaches to the end, wherever that is.
_FLOCK = struct.Struct("hhqqi4x")
_TO_THE_END = 0


class Place:
    """A place in the queue of a file, from `Place.take` to `leave`."""

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self._number = number
        self._waiter: threading.Thread | None = None
        self._has_waited = threading.Event()
        self._error: OSError | None = None

    @classmethod
    def take(cls, file: Path) -> Place:
        """Stand at the end of the queue.

        Raises:
            OSError: If the file cannot be opened for reading and writing, or does not take locks.
        """
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            while True:
                number = _first_free(fd)
                # Somebody else may have found the same one; the kernel lets one of them have it.
                with contextlib.suppress(BlockingIOError):
                    _lock(fd, fcntl.F_OFD_SETLK, number, 1)
                    return cls(fd, number)
        except BaseException:
            os.close(fd)
            raise

    def is_head(self) -> bool:
        """Whether everybody who came earlier has left; then this stays head until it leaves, too."""
        if self._number == 0:
            return True
        try:
            _lock(self._fd, fcntl.F_OFD_SETLK, 0, self._number)
        except BlockingIOError:
            return False
        return True

    def wait_head(self, deadline_s: float) -> bool:
        """Wait to become head.

        Args:
            deadline_s: On the monotonic clock. After it a place can still be asked again, or left.

        Returns:
            False if others were first all that time.

        Raises:
            OSError: If the kernel refuses.
        """
        if self._waiter is None:
            if self.is_head():
                return True
            # Only a thread can wait for a lock and still be given up on. It has a descriptor of its own, to close when
            # the kernel lets it go, whether anybody still waits for it or not.
            waiter = threading.Thread(target=self._wait, args=(os.dup(self._fd),), name="gpu-queue", daemon=True)
            waiter.start()
            self._waiter = waiter
        if not self._has_waited.wait(max(0.0, deadline_s - time.monotonic())):
            return False
        if self._error is not None:
            raise self._error
        return True

    def leave(self) -> None:
        """Let the next one be head."""
        # Not by closing alone: a thread that still waits has the file open.
        with contextlib.suppress(OSError):
            _lock(self._fd, fcntl.F_OFD_SETLK, 0, _TO_THE_END, fcntl.F_UNLCK)
        os.close(self._fd)

    def _wait(self, fd: int) -> None:
        try:
            _lock(fd, fcntl.F_OFD_SETLKW, 0, self._number)
        except OSError as error:
            self._error = error
        finally:
            self._has_waited.set()
            os.close(fd)


def _lock(fd: int, command: int, start: int, length: int, kind: int = fcntl.F_WRLCK) -> None:
    fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))


def _first_free(fd: int) -> int:
    """The byte after the last one that anybody has locked."""
    number = 0
    while True:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, _TO_THE_END, 0)
        kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            return number
        if length == _TO_THE_END:
            raise OSError(errno.EBUSY, "another program has locked it to its end")
        number = start + length
