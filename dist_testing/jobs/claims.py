"""Which process runs which part of the session: memory that the runner and its sub-runners share."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

_FREE = 0
_WITHDRAWN = 255


class Claims:
    """The units of a session, in order, each with the sub-runner that has claimed it.

    The kernel releases the lock of a process that is killed, so no sub-runner can block the others.
    """

    def __init__(self, count: int) -> None:
        """Make `count` free units. Sub-runners that are forked later share them."""
        self._fd = os.memfd_create("dist_testing-claims", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, count)
        self._count = count

    def take(self, sub_runner: int) -> int | None:
        """Claim the first free unit for a sub-runner, numbered from 0; return None if none is free."""
        with self._locked():
            unit = os.pread(self._fd, self._count, 0).find(_FREE)
            if unit < 0:
                return None
            os.pwrite(self._fd, bytes([sub_runner + 1]), unit)
            return unit

    def owner(self, unit: int) -> int | None:
        """Return the sub-runner that has claimed a unit; None if no sub-runner has."""
        (byte,) = os.pread(self._fd, 1, unit)
        return None if byte in (_FREE, _WITHDRAWN) else byte - 1

    def withdraw(self) -> None:
        """Let no sub-runner claim another unit."""
        with self._locked():
            units = os.pread(self._fd, self._count, 0)
            os.pwrite(self._fd, units.replace(bytes([_FREE]), bytes([_WITHDRAWN])), 0)

    def close(self) -> None:
        """Close this process's descriptor."""
        os.close(self._fd)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
