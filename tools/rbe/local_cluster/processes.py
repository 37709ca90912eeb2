"""Finds the processes of a cluster and ends them, also those whose parents have ended."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from local_cluster.errors import ClusterError
from local_cluster.parts import MARK, WORKER_MARK
from local_cluster.places import Scratch

# A process that the kernel cannot end within this time hangs in a device or a file system. Seconds.
_END_LIMIT_S = 10.0


def descendants() -> list[psutil.Process]:
    """Return the living children of this process, their children, and so on."""
    return descendants_of(os.getpid())


def descendants_of(pid: int) -> list[psutil.Process]:
    """Return the living children of a process, their children, and so on."""
    with suppress(psutil.NoSuchProcess):
        return _select(psutil.Process(pid).children(recursive=True), lambda _process: True)
    return []


def open_process(pid: int, opened: Path) -> int | None:
    """Return a descriptor of the process that has a file open; None if the process with that number does not.

    A number and a start time are weaker: after a change of the clock or a restart of the machine, both may belong to
    another process.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    # The descriptor comes first: so the check is about this process, and not an earlier one with the same number.
    with suppress(OSError):
        wanted = opened.stat()
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found = os.stat(f"/proc/{pid}/fd/{name}")
                if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return pidfd
    os.close(pidfd)
    return None


def ended_children() -> list[int]:
    """Return the numbers of this process's children that have ended and were not reaped."""
    ended = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                ended.append(process.pid)
    return ended


def marked(scratch: Scratch) -> list[psutil.Process]:
    """Return the processes that were started for a cluster, by their environment.

    PostgreSQL overwrites its environment, so it is found by its directory.
    """
    database = str(scratch.database)

    def belongs(process: psutil.Process) -> bool:
        return process.environ().get(MARK) == str(scratch.root) or process.cwd().rstrip("/") == database

    return _select(psutil.process_iter(), belongs)


def of_worker(worker: str, candidates: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return those of `candidates` that a worker or one of its actions has started."""
    return _select(candidates, lambda process: process.environ().get(WORKER_MARK) == worker)


def kill_all(find: Callable[[], list[psutil.Process]]) -> None:
    """Kill all processes that `find` finds, until it finds none: a process may start others before it is killed."""
    while processes := find():
        # When all of them are stopped, none can start another.
        for process in processes:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.suspend()
        for process in processes:
            # A process that we may not kill is still alive below, and is named there.
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()
        if alive := _still_alive(processes):
            named = ", ".join(f"{process.pid} ({_state(process)})" for process in alive)
            raise ClusterError(
                f"processes do not end after SIGKILL: {named}.",
                "They wait in the kernel, for a device or a file system, or belong to another user.",
                "`ps -o pid,user,stat,wchan,args` shows them; a restart of the machine ends them.",
            )


def _still_alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Wait for killed processes to end. None of them is reaped, because their parents must do that."""
    deadline = time.monotonic() + _END_LIMIT_S
    alive = []
    for process in processes:
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([pidfd], [], [], left_s)[0]:
                alive.append(process)
        finally:
            os.close(pidfd)
    return alive


def _state(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.name()}, {process.status()}"
    return "gone"


def _select(candidates: Iterable[psutil.Process], belongs: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    found = []
    for process in candidates:
        # Other users' processes do not belong to a cluster of ours, and a zombie has no environment.
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and belongs(process):
                found.append(process)
    return found
