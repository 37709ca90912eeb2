"""Processes that ranks leave behind, and their removal."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import psutil

__all__ = ["kill_strays", "remove_descendants"]

# What a rank leaves behind may be on its way out. Seconds until it counts as left behind.
_LEAVING_S = 0.5
# After a kill; only a process stuck in the kernel takes longer. Seconds.
_KILLED_S = 5.0
# It unlinks the shared memory of processes that were killed, when the last of them is gone.
_TRACKER = "multiprocessing.resource_tracker"


def remove_descendants() -> list[str]:
    """Remove what lives below this process, which must have no children but ranks and what they left to it.

    Returns:
        Command lines of those that had to be killed.
    """
    if not _reap():
        return []
    psutil.wait_procs(psutil.Process().children(recursive=True), timeout=_LEAVING_S)
    leaked: list[str] = []
    deadline_s = time.monotonic() + _KILLED_S
    # More than one round: between the look and the kill, a process may have made another.
    while _reap() and time.monotonic() < deadline_s:
        leaked += _kill(psutil.Process().children(recursive=True), max(0.0, deadline_s - time.monotonic()))
    return leaked


def kill_strays(temp: str) -> None:
    """Kill descendants of this process that came from ranks, where nobody else has: the template was killed.

    Args:
        temp: The start of every rank's TMPDIR, by which what it started is known. Other children are not ours to kill.
    """
    strays = [child for child in psutil.Process().children(recursive=True) if _env(child, "TMPDIR").startswith(temp)]
    _kill(strays, _KILLED_S)


def _kill(processes: Sequence[psutil.Process], limit_s: float) -> list[str]:
    trackers, others = [], []
    killed: list[str] = []
    for process in processes:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            command = " ".join(process.cmdline()) or process.name()
            if _TRACKER in command:
                trackers.append(process)
                continue
            others.append(process)
            process.kill()
            killed.append(f"{command} (pid {process.pid})")
        except psutil.NoSuchProcess:
            # It ended by itself in between.
            continue
    psutil.wait_procs(others, timeout=limit_s)
    # With nobody left to track, these do their work and end.
    _, stuck = psutil.wait_procs(trackers, timeout=_LEAVING_S)
    for process in stuck:
        process.kill()
    psutil.wait_procs(stuck, timeout=limit_s)
    return killed


def _env(process: psutil.Process, name: str) -> str:
    try:
        return str(process.environ().get(name, ""))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def _reap() -> bool:
    """Reap every dead child; say whether living ones are left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
