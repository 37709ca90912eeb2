"""Processes that ranks leave behind, and their removal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

import psutil

from dist_testing.process.descent import descends_from
from dist_testing.process.lifetime import is_helper

__all__ = ["Orphans", "is_dead", "kill_orphans"]

# What a rank leaves behind may be on its way out. Seconds until it counts as left behind.
_LEAVING_S = 0.5
# A rank may have died while it started a program, which has the rank's environment only from then on. Seconds for all
# looks, and between two.
_STARTING_S = 1.0
_LOOK_S = 0.05
# After a kill; only a process stuck in the kernel takes longer. Seconds.
_KILLED_S = 5.0
# Helpers end by themselves and must not be killed before they have unlinked shared memory. The resource tracker may
# only just have been started; torch's manager waits two seconds for another user. Seconds.
_HELPERS_S = 5.0


class Orphans:
    """What lives below this process, which must have no children but ranks and what they left to it."""

    def __init__(self) -> None:
        """Of a process that has no children yet."""
        self._given_up: set[psutil.Process] = set()

    def remove(self) -> list[str]:
        """Remove what is there, but for what has been given up before: it is no later world's fault.

        Returns:
            Command lines of those that had to be killed, or should have been.
        """
        if not _reap():
            return []
        psutil.wait_procs(self._living(), timeout=_LEAVING_S)
        leaked: list[str] = []
        deadline_s = time.monotonic() + _KILLED_S
        # More than one round: between the look and the kill, a process may have made another.
        while _reap() and (living := self._living()) and (left_s := deadline_s - time.monotonic()) > 0:
            named, given_up = _kill(living, left_s)
            leaked += named
            self._given_up |= given_up
        return leaked

    def _living(self) -> list[psutil.Process]:
        below = psutil.Process().children(recursive=True)
        return [process for process in below if process not in self._given_up and not is_dead(process)]


def kill_orphans(temp: str, fork_server_pid: int) -> None:
    """Kill descendants of this process that came from ranks, after the fork server was killed and could not do it.

    Args:
        temp: The start of every rank's TMPDIR. It marks what ranks start where the kernel refuses the other mark.
        fork_server_pid: The process whose descendants they are. Other children of this process are not ours to kill.
    """
    until_s = time.monotonic() + _STARTING_S
    # One that is about to become the resource tracker unlinks shared memory, if it lives long enough to start.
    psutil.wait_procs(_orphans(temp, fork_server_pid), timeout=_LEAVING_S)
    while True:
        _kill(_orphans(temp, fork_server_pid), _KILLED_S)
        if time.monotonic() >= until_s:
            return
        time.sleep(_LOOK_S)


def _orphans(temp: str, fork_server_pid: int) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if (descends_from(child.pid, fork_server_pid) or _env(child, "TMPDIR").startswith(temp)) and not is_dead(child)
    ]


def _kill(processes: Sequence[psutil.Process], limit_s: float) -> tuple[list[str], set[psutil.Process]]:
    """Kill them.

    Returns:
        What is to be said of them, and those that are still there.
    """
    helpers, killed, given_up = [], [], set()
    named: list[str] = []
    for process in processes:
        # One that has ended by itself in between is none.
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
    # With nobody left to serve, these do their work and end.
    _, stuck = psutil.wait_procs(helpers, timeout=_HELPERS_S)
    for process in stuck:
        with contextlib.suppress(psutil.NoSuchProcess):
            _try_to_kill(process)
    # Short: all waits together must end before the runner's own limit, `_KILL_LIMIT_S` of the supervisor.
    _, stuck = psutil.wait_procs(stuck, timeout=_LEAVING_S)
    given_up.update(stuck)
    return named, given_up


def _try_to_kill(process: psutil.Process) -> bool:
    """Kill it; False if this user may not."""
    try:
        process.kill()
    except psutil.AccessDenied:
        return False
    return True


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.ZombieProcess:
        # Its main thread has ended. The kernel keeps the command line for the other threads only.
        return _command_of_a_thread(process.pid) or process.name()
    except psutil.AccessDenied:
        return "a process"


def _command_of_a_thread(pid: int) -> str:
    for thread in _threads(pid):
        # The thread may end before it is read.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/cmdline", "rb") as cmdline:
            if words := cmdline.read().rstrip(b"\0").split(b"\0"):
                return b" ".join(words).decode(errors="replace")
    return ""


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def is_dead(process: psutil.Process) -> bool:
    """Return whether nothing of a process runs any more.

    A process whose main thread has ended is a zombie for the kernel, but its other threads go on.
    """
    try:
        return process.status() == psutil.STATUS_ZOMBIE and len(_threads(process.pid)) <= 1
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
    """Reap every dead child; say whether living ones are left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
