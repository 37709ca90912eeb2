"""Sends a rank's output to its own file, at descriptor level: gloo and c10d write to descriptor 2 from C++."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from dist_testing.threaded.members import current_member

__all__ = ["flush_streams", "own_streams", "redirect_output", "split_output"]


def _stream(fd: int) -> io.TextIOWrapper:
    # Unbuffered below and line by line above: what a rank printed before it was killed is in the file. Bytes that the
    # encoding cannot express must not turn a print into a failure.
    raw = io.FileIO(fd, "wb", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def own_streams() -> None:
    """Replace Python's streams by ones on descriptors 0 to 2, whatever they were: pytest puts its own there."""
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8")
    # The dunder names too: libraries that distrust a replaced sys.stdout write to sys.__stdout__.
    sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc]  # Final in typeshed
    sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc]


def redirect_output(path: str) -> None:
    """Point descriptors 1 and 2 at `path`, and descriptor 0 at nothing."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for fd in (log, nothing):
        # A runner started with closed standard descriptors gets low numbers from open().
        if fd > 2:
            os.close(fd)


def flush_streams() -> None:
    """Let nothing that Python has been told to print be lost with the process."""
    for stream in (sys.stdout, sys.stderr):
        # A test may have closed or replaced it; then there is nothing left to save.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def split_output(paths: Sequence[str]) -> None:
    """Give each rank that is a thread a log of its own, of what it and the threads that it starts print from Python.

    Descriptors belong to the process, so what native code prints is in the log of rank 0, as is the output of threads
    that are nobody's. Descriptors 1 and 2 must go there already.

    Args:
        paths: The ranks' logs, by rank.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    logs = [_stream(os.open(path, flags, 0o600)) for path in paths[1:]]
    sys.stdout = sys.__stdout__ = _StreamOfThread([_stream(1), *logs])  # type: ignore[misc,assignment]
    sys.stderr = sys.__stderr__ = _StreamOfThread([_stream(2), *logs])  # type: ignore[misc,assignment]


class _StreamOfThread:
    """Whatever is done to it is done to the stream of the calling thread's rank."""

    def __init__(self, streams: Sequence[io.TextIOWrapper]) -> None:
        self._streams = streams

    def __getattr__(self, name: str) -> Any:
        member = current_member()
        return getattr(self._streams[0 if member is None else member.rank], name)
