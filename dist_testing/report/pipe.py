"""Ends a program without a traceback if the reader of its output, such as `head`, has ended before."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable


def into_pipe(run: Callable[[], int]) -> int:
    """Return the exit status of a program that `run` is; that of a shell for SIGPIPE if the output has no reader."""
    try:
        status = run()
        sys.stdout.flush()
    except BrokenPipeError:
        # Python writes the rest at the end of the process, and would tell of the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status
