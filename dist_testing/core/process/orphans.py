"""Removes the orphan processes that ranks leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

import psutil

from dist_testing.core.ground.procfs import command_of, status_of, threads_of
from dist_testing.core.process.descent import descends_from
from dist_testing.core.process.lifetime import is_helper

# Seconds until a process counts as left behind, because it may be about to end.
_LEAVING_S = 0.5
# Seconds for the whole search, and between two looks. A rank may have died while it started a program, which has the
# rank's environment only afterwards.
_STARTING_S = 1.0
_LOOK_S = 0.05
# Seconds after a kill. Only a process that is stuck in the kernel takes longer.
_KILLED_S = 5.0
# Helpers end by themselves and must not be killed before they have unlinked shared memory. The resource tracker may
# only just have been started; torch's manager waits two seconds for another user. Seconds.
_HELPERS_S = 5.0


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
        return [process for process in below if process not in self._given_up and not is_dead(process)]


def kill_orphans(temp: str, fork_server_pid: int) -> None:
    """Kill and reap descendants of this process that came from ranks, after the fork server was killed.

    Args:
        temp: The start of every rank's TMPDIR. It marks what ranks start where the kernel refuses the other mark.
        fork_server_pid: The process whose descendants they are. Other children of this process are not ours to kill.
    """
    until_s = time.monotonic() + _STARTING_S
    # One that is about to become the resource tracker unlinks shared memory, if it lives long enough to start.
    psutil.wait_procs(_orphans(temp, fork_server_pid), timeout=_LEAVING_S)
    while True:
        _kill(_orphans(temp, fork_server_pid), _KILLED_S)
        _reap_descendants(fork_server_pid)
        if time.monotonic() >= until_s:
            return
        time.sleep(_LOOK_S)


def _reap_descendants(fork_server_pid: int) -> None:
    """Reap dead children that descend from the fork server: Linux has made this process their parent.

    Otherwise each would stay a zombie until the run ends. The mark of a zombie can still be read, its variables cannot.
    """
    for child in psutil.Process().children():
        if descends_from(child.pid, fork_server_pid) and is_dead(child):
            # Other code of the runner may have waited for it.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def kill_tracer(pid: int) -> None:
    """Kill the descendant of this process that traces a child of it, if there is one.

    The kernel tells the end of a traced process to its tracer first, and to its parent only after the tracer has looked
    or ended. A debugger of the user is no descendant, and looks.
    """
    try:
        tracer = int(status_of(pid).get("TracerPid", "0"))
        if tracer and any(below.pid == tracer for below in psutil.Process().children(recursive=True)):
            os.kill(tracer, signal.SIGKILL)
    except (OSError, psutil.NoSuchProcess):
        # One of the two has ended, or belongs to another user.
        return


def _orphans(temp: str, fork_server_pid: int) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if (descends_from(child.pid, fork_server_pid) or _env(child, "TMPDIR").startswith(temp)) and not is_dead(child)
    ]


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
    _, stuck = psutil.wait_procs(helpers, timeout=_HELPERS_S)
    for process in stuck:
        with contextlib.suppress(psutil.NoSuchProcess):
            _try_to_kill(process)
    # Short: all waits together must end before the runner's own limit, `_KILL_LIMIT_S` of the supervisor.
    _, stuck = psutil.wait_procs(stuck, timeout=_LEAVING_S)
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
        return command_of(process.pid) or process.name()
    except psutil.AccessDenied:
        return "a process"


def is_dead(process: psutil.Process) -> bool:
    """Return whether nothing of a process runs any more.

    A process whose main thread has ended is a zombie for the kernel, but its other threads go on.
    """
    try:
        return process.status() == psutil.STATUS_ZOMBIE and len(threads_of(process.pid)) <= 1
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
