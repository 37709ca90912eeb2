"""Ends the helper processes of `multiprocessing` that may live as long as the rank."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time

import psutil

# Seconds for all together. A process that takes longer counts as left behind.
_LIMIT_S = 5.0


def end_daemons() -> None:
    """Shut down managers and pools, and terminate children that are daemons, as Python does at the end of a process.

    https://docs.python.org/3/library/multiprocessing.html: "When a process exits, it attempts to terminate all of its
    daemonic child processes." A rank ends without Python's exit handlers, so it does this here. Libraries rely on it:
    the workers of a data loader and the process of an asynchronous checkpoint are such children. Python also waits for
    the other children, without a limit; here they count as left behind.
    """
    if (util := sys.modules.get("multiprocessing.util")) is None:
        return
    # Private. 0 leaves out the finaliser that waits until a queue's items have been read.
    util._run_finalizers(0)
    daemons = [child for child in multiprocessing.active_children() if child.daemon]
    if not daemons:
        return
    # This process may have been forked by one that has children, and then it knows them too.
    ours = {below.pid for below in psutil.Process().children(recursive=True)}
    daemons = [child for child in daemons if child.pid in ours]
    for child in daemons:
        # One that runs as another user cannot be terminated.
        with contextlib.suppress(PermissionError):
            child.terminate()
    until_s = time.monotonic() + _LIMIT_S
    for child in daemons:
        child.join(max(0.0, until_s - time.monotonic()))
