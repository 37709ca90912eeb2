"""Reads the logs of ranks. A rank writes to its own file at the end, so that no rank waits for a reader."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a file that a rank has written.

    A test may have put something else in its place: a pipe would block this process, and a device has no end.

    Raises:
        OSError: If it cannot be opened, or is not a regular file.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(fd, "rb" if flags == os.O_RDONLY else "r+b", buffering=0 if flags != os.O_RDONLY else -1)
    except BaseException:
        os.close(fd)
        raise


def read_tail(path: Path, limit_bytes: int) -> str:
    """Return the end of a rank's log; "" if the rank has not opened it; one line if a test has replaced it."""
    try:
        with open_regular(path) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit_bytes))
            return file.read(limit_bytes).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"(the output of this rank is lost: a test has replaced its log: {error})"
