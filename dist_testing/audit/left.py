"""Finds what a run has left behind: processes, listening ports, files of the temporary folder and of /dev/shm."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from dist_testing.error_text import shorten
from dist_testing.process.lifetime import is_helper
from dist_testing.process.orphans import is_dead
from dist_testing.procfs import command_of

_SHM = Path("/dev/shm")
# Seconds until a process counts as left behind: it may be about to end, and helpers wait for a moment of their own.
_LEAVING_S = 2.0
_COMMAND_CHARS = 160
# Not only digits: those are pids and numbers, of any length.
_TEMPORARY = re.compile(r"(.*)(?=.*[a-z])[a-z0-9_]{8}")
# pytest keeps the folders of its last sessions on purpose.
_KEPT_ON_PURPOSE = "pytest-of-"


@dataclass(frozen=True)
class Left:
    """What a run has left behind.

    Attributes:
        processes: Command lines of processes that still ran.
        ports: Addresses on which these processes listened, such as "127.0.0.1:29500".
        files: Names of files and folders, such as "/dev/shm/psm_1a2b".
    """

    processes: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def beyond(self, usual: Left) -> Left:
        """Return what `usual`, the rest of a run without a fault, has nothing like."""
        known = {shape(name) for name in (*usual.processes, *usual.files)}
        processes = tuple(name for name in self.processes if shape(name) not in known)
        ports = self.ports if processes else ()
        return Left(processes, ports, tuple(name for name in self.files if shape(name) not in known))

    def __bool__(self) -> bool:
        return bool(self.processes or self.ports or self.files)


def shape(name: str) -> str:
    """Return a name without what differs between two runs: numbers, and the random part of temporary names."""
    if name.startswith("/"):
        # tempfile puts eight random letters, digits or underscores at the end.
        found = _TEMPORARY.fullmatch(name)
        return found[1] if found else re.sub(r"\d+", "0", name)
    return re.sub(r"0x[0-9a-f]+|\d+", "0", name)


def shared_memory() -> frozenset[str]:
    """Return the names of this user's files in /dev/shm."""
    names = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(_SHM):
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    names.add(entry.path)
    return frozenset(names)


def living() -> list[psutil.Process]:
    """Return the descendants of this process that still run, and reap those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return [process for process in psutil.Process().children(recursive=True) if not is_dead(process)]


def find_left(temp: Path, shm_before: frozenset[str]) -> Left:
    """Return what a finished command has left behind. Its processes must be descendants of this one.

    Args:
        temp: The temporary folder of the run.
        shm_before: `shared_memory()` before it.
    """
    until_s = time.monotonic() + _LEAVING_S
    while (processes := living()) and time.monotonic() < until_s:
        time.sleep(0.05)
    named, ports = [], set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            command = command_of(process.pid) or process.name()
            if is_helper(process.pid, command):
                continue
            named.append(shorten(command, _COMMAND_CHARS).replace("\n", " "))
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.add(f"{connection.laddr.ip}:{connection.laddr.port}")
    files = [str(path) for path in sorted(temp.iterdir()) if not path.name.startswith(_KEPT_ON_PURPOSE)]
    new = shared_memory() - shm_before
    files += sorted(new - _used_by_others(new)) if new else []
    # The folder of the run is the audit's own, and gone when a person reads this.
    return Left(tuple(named), tuple(sorted(ports)), tuple(file.replace(f"{temp}/", "/tmp/") for file in files))


def _used_by_others(paths: Iterable[str]) -> set[str]:
    """Return those files of /dev/shm that living processes have open or mapped."""
    wanted = set(paths)
    used: set[str] = set()
    ours = {process.pid for process in living()}
    for link in glob.iglob("/proc/[0-9]*/map_files/*"):
        with contextlib.suppress(OSError):
            if int(link.split("/")[2]) not in ours and (target := os.readlink(link)) in wanted:
                used.add(target)
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if int(link.split("/")[2]) not in ours and (target := os.readlink(link)) in wanted:
                used.add(target)
    return used
