"""Runs a program whose output may have no reader, such as after `head`, or lack characters of a path or a number."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable


def into_pipe(run: Callable[[], int]) -> int:
    """Return the exit status of a program that `run` is; that of a shell for SIGPIPE if the output has no reader."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = run()
        # A daemon has no output.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python writes the rest at the end of the process, and would tell of the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status
