"""A process that has many files open."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

# select() can only wait for smaller numbers (FD_SETSIZE).
_HIGH = 1024


@contextlib.contextmanager
def all_low_numbers_taken() -> Iterator[None]:
    """Raise the number of every descriptor opened in the block above select()'s limit.

    Skips the test where a process may not have so many open files.
    """
    soft, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * _HIGH
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"no process may open more than {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    with contextlib.ExitStack() as undo:
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        while (fd := os.open(os.devnull, os.O_RDONLY)) < _HIGH:
            undo.callback(os.close, fd)
        os.close(fd)
        yield
