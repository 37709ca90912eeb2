"""Children of a test's own process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def forked() -> Iterator[int]:
    """Fork a child with all open files of this process, and yield its pid; it lives as long as the block."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        yield pid
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(pid, 0)
