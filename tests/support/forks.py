"""Children of a test's own process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["forked"]


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """A child of this process, with everything that it has open, for as long as the block lasts."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(pid, 0)
