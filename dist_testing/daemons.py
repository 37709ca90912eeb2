"""Ends the helper processes of `multiprocessing` that may live as long as the rank."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import threading
import time

import psutil

from dist_testing.core.rank.hooks import RankService

# Seconds for all together. A process that takes longer counts as left behind.
_LIMIT_S = 5.0


class Daemons(RankService):
    """Shuts down managers and pools, and terminates children that are daemons, as Python does at the end of a process.

    https://docs.python.org/3/library/multiprocessing.html: "When a process exits, it attempts to terminate all of its
    daemonic child processes." A rank ends without Python's exit handlers, so it does this here. Libraries rely on it:
    the workers of a data loader and the process of an asynchronous checkpoint are such children. Python also waits for
    the other children, without a limit; here they count as left behind.
    """

    def close(self) -> None:
        """End them: the rank has reported."""
        if (util := sys.modules.get("multiprocessing.util")) is None:
            return
        until_s = time.monotonic() + _LIMIT_S
        # torch's data loader has a handler that raises when a worker ends by a signal.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Private. Most ranks have none, and a thread costs a sixth of the end of a case.
        if util._finalizer_registry:
            # 0 leaves out the finaliser that waits until a queue's items have been read. In a thread, because that of a
            # pool waits forever if a worker has died with the pool's lock.
            finalizers = threading.Thread(target=util._run_finalizers, args=(0,), daemon=True)
            finalizers.start()
            finalizers.join(_LIMIT_S / 2)
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
        for child in daemons:
            child.join(max(0.0, until_s - time.monotonic()))
