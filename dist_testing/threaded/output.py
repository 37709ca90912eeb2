"""Gives each rank that is a thread its own log."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from dist_testing.core.rank.capture import stream_on
from dist_testing.threaded.members import current_member


def split_output(paths: Sequence[str]) -> None:
    """Give each rank that is a thread its own log of Python output, which includes the threads that it starts.

    The log of rank 0, the first of `paths`, also gets the output of native code, whose descriptors belong to the
    process, and of threads without a rank. Descriptors 1 and 2 must already point at this log.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    logs = [stream_on(os.open(path, flags, 0o600)) for path in paths[1:]]
    sys.stdout = sys.__stdout__ = _StreamOfThread([stream_on(1), *logs])  # type: ignore[misc,assignment]
    sys.stderr = sys.__stderr__ = _StreamOfThread([stream_on(2), *logs])  # type: ignore[misc,assignment]


class _StreamOfThread:
    """Forwards every attribute to the stream of the calling thread's rank."""

    def __init__(self, streams: Sequence[io.TextIOWrapper]) -> None:
        self._streams = streams

    def __getattr__(self, name: str) -> Any:
        member = current_member()
        return getattr(self._streams[0 if member is None else member.rank], name)
