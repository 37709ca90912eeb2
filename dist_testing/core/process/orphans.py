"""Removes the orphan processes that ranks leave behind.

A mark tells the descendants of a process when their parents are gone. A child may have no environment, another session,
and no descriptor of its parent. The mark is a limit that Linux keeps and has not enforced since version 2.4: the number
of file locks. A process inherits it through `fork` and `exec`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Sequence

import psutil

from dist_testing.core.ground.procfs import command_of, status_of, threads_of
from dist_testing.core.process.lifetime import is_helper

# Seconds until a process counts as left behind, because it may be about to end.
_LEAVING_S = 0.5
# Seconds after a kill. Only a process that is stuck in the kernel takes longer.
_KILLED_S = 5.0
# Helpers end by themselves and must not be killed before they have unlinked shared memory. The resource tracker may
# only just have been started; torch's manager waits two seconds for another user. Seconds.
_HELPERS_S = 5.0
# RLIMIT_LOCKS of <asm-generic/resource.h>, which Python does not name.
_LIMIT = 10
_FIELD = b"Max file locks"
# No user gives a limit of this size. A mark adds the pid to it, in these bits, and above them the rank plus 1.
_BASE = 1 << 40
_PID_BITS = 22


class Orphans:
    """The descendants of this process that ranks have left behind."""

    def __init__(self, mark: int | None = None) -> None:
        """Those of the fork server `mark` alone: other children are not ours to kill. None for all descendants."""
        self._mark = mark
        self._given_up: set[psutil.Process] = set()

    def remove(self) -> list[str]:
        """Kill and reap them, except those that an earlier call could not kill.

        Returns the command lines of the processes that this call has killed, or could not kill.
        """
        if not self._reap():
            return []
        psutil.wait_procs(self._living(), timeout=_LEAVING_S)
        leaked: list[str] = []
        deadline_s = time.monotonic() + _KILLED_S
        # Several rounds, because a process may start another one between the look and the kill.
        while self._reap() and (living := self._living()) and (left_s := deadline_s - time.monotonic()) > 0:
            named, given_up = _kill(living, left_s)
            leaked += named
            self._given_up |= given_up
        return leaked

    def _living(self) -> list[psutil.Process]:
        below = psutil.Process().children(recursive=True)
        return [one for one in below if self._is_ours(one) and one not in self._given_up and not is_dead(one)]

    def _is_ours(self, process: psutil.Process) -> bool:
        return self._mark is None or mark_of(process.pid)[0] == self._mark

    def _reap(self) -> bool:
        """Reap dead children; return whether living ones may be left."""
        if self._mark is not None:
            for child in filter(self._is_ours, psutil.Process().children()):
                # Other code of the runner may have waited for it.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
            return True
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return False
        return True


def kill_tracer(pid: int) -> None:
    """Kill the descendant of this process that traces a child of it, if there is one.

    The kernel tells the end of a traced process to its tracer first, and to its parent only after the tracer has looked
    or ended. A user's debugger is not our child and reaps by itself.
    """
    try:
        tracer = int(status_of(pid, "TracerPid") or "0")
        if tracer and any(below.pid == tracer for below in psutil.Process().children(recursive=True)):
            os.kill(tracer, signal.SIGKILL)
    except (OSError, psutil.NoSuchProcess):
        # One of the two has ended, or belongs to another user.
        return


def _kill(processes: Sequence[psutil.Process], limit_s: float) -> tuple[list[str], set[psutil.Process]]:
    """Kill processes. Return their command lines, without helpers, and the processes that are still alive."""
    helpers, killed, given_up = [], [], set()
    named: list[str] = []
    for process in processes:
        # A process that has ended by itself is not left behind.
        with contextlib.suppress(psutil.NoSuchProcess):
            command = command_of(process.pid) or process.as_dict(["name"], ad_value="a process")["name"]
            (_, rank), pid = mark_of(process.pid), f"pid {process.pid}"
            origin = "" if rank is None else f", of rank {rank}"
            if is_helper(process.pid, command):
                helpers.append(process)
            elif _try_to_kill(process):
                killed.append(process)
                named.append(f"{command} ({pid}{origin})")
            else:
                given_up.add(process)
                named.append(f"{command} ({pid}{origin}, not killed: it runs as another user)")
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


def mark_descendants() -> None:
    """Mark all processes that this one makes from now on, and itself; without effect where the kernel refuses."""
    _set_limit(_BASE + os.getpid())


def mark_rank(rank: int) -> None:
    """Add the rank to the mark of this process, which the fork server has made, for all that it starts."""
    soft, _ = resource.getrlimit(_LIMIT)
    if soft > _BASE:
        _set_limit(soft + ((rank + 1) << _PID_BITS))


def _set_limit(soft: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(_LIMIT)
        resource.setrlimit(_LIMIT, (soft, hard))


def mark_of(pid: int) -> tuple[int | None, int | None]:
    """Return the pid of the fork server, and the rank, that a process descends from.

    The fork server is the nearest ancestor that has called `mark_descendants`, or the process itself. Both are None
    without such an ancestor, or if the process has ended; the rank is also None for other descendants of it.
    """
    try:
        with open(f"/proc/{pid}/limits", "rb") as limits:
            found = next((line for line in limits if line.startswith(_FIELD)), b"")
    except OSError:
        return None, None
    value = b"".join(found.removeprefix(_FIELD).split()[:1])
    if not value.isdigit() or int(value) <= _BASE:
        return None, None
    above, server = divmod(int(value) - _BASE, 1 << _PID_BITS)
    return server, above - 1 if above else None
