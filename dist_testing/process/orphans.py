"""Removes the orphan processes that ranks leave behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

import psutil

from dist_testing.process.lifetime import is_helper

__all__ = ["Orphans", "kill_orphans"]

# Seconds until a process counts as left behind, because it may be about to end.
_LEAVING_S = 0.5
# Seconds for the whole search, and between two looks. A rank may have died while it started a program, which has the
# rank's environment only afterwards.
_STARTING_S = 1.0
_LOOK_S = 0.05
# Seconds after a kill. Only a process that is stuck in the kernel takes longer.
_KILLED_S = 5.0


class Orphans:
    """The descendants of this process. Its children must be ranks, or processes that ranks left behind."""

    def __init__(self) -> None:
        """Make the object before this process has children."""
        self._given_up: set[psutil.Process] = set()

    def remove(self) -> list[str]:
        """Kill all descendants, except those that an earlier call could not kill.

        Returns:
            Command lines of the processes that this call has killed, or could not kill.
        """
        if not _reap():
            return []
        psutil.wait_procs(self._living(), timeout=_LEAVING_S)
        leaked: list[str] = []
        deadline_s = time.monotonic() + _KILLED_S
        # Several rounds, because a process may start another one between the look and the kill.
        while _reap() and (living := self._living()) and (left_s := deadline_s - time.monotonic()) > 0:
            named, given_up = _kill(living, left_s)
            leaked += named
            self._given_up |= given_up
        return leaked

    def _living(self) -> list[psutil.Process]:
        below = psutil.Process().children(recursive=True)
        return [process for process in below if process not in self._given_up and not _is_dead(process)]


def kill_orphans(temp: str) -> None:
    """Kill the orphan processes of ranks that this process adopted when the fork server was killed.

    Args:
        temp: Prefix of every rank's TMPDIR, which identifies these processes. Other children stay alive.
    """
    until_s = time.monotonic() + _STARTING_S
    while True:
        below = psutil.Process().children(recursive=True)
        orphans = [child for child in below if _env(child, "TMPDIR").startswith(temp)]
        _kill([orphan for orphan in orphans if not _is_dead(orphan)], _KILLED_S)
        if time.monotonic() >= until_s:
            return
        time.sleep(_LOOK_S)


def _kill(processes: Sequence[psutil.Process], limit_s: float) -> tuple[list[str], set[psutil.Process]]:
    """Kill processes.

    Returns:
        Their command lines for the report, without helpers; and the processes that are still alive.
    """
    helpers, killed, given_up = [], [], set()
    named: list[str] = []
    for process in processes:
        # A process that has ended by itself is not left behind.
        with contextlib.suppress(psutil.NoSuchProcess):
            command = _command(process)
            if is_helper(process.pid, command):
                helpers.append(process)
            elif _try_to_kill(process):
                killed.append(process)
                named.append(f"{command} (pid {process.pid})")
            else:
                given_up.add(process)
                named.append(f"{command} (pid {process.pid}, not killed: it runs as another user)")
    _, stuck = psutil.wait_procs(killed, timeout=limit_s)
    given_up.update(stuck)
    # A helper finishes its work and ends when no process uses it.
    _, stuck = psutil.wait_procs(helpers, timeout=_LEAVING_S)
    for process in stuck:
        with contextlib.suppress(psutil.NoSuchProcess):
            _try_to_kill(process)
    _, stuck = psutil.wait_procs(stuck, timeout=limit_s)
    given_up.update(stuck)
    return named, given_up


def _try_to_kill(process: psutil.Process) -> bool:
    """Kill the process; return False if this user may not."""
    try:
        process.kill()
    except psutil.AccessDenied:
        return False
    return True


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.AccessDenied:
        return "a process"


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _env(process: psutil.Process, name: str) -> str:
    try:
        return str(process.environ().get(name, ""))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def _reap() -> bool:
    """Reap every dead child; return whether living ones are left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
