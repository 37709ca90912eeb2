"""Finds what a run has left behind: processes, listening ports, files of the temporary folder and of /dev/shm."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.procfs import command_of
from dist_testing.core.process.lifetime import is_helper
from dist_testing.core.process.orphans import is_dead

_SHM = "/dev/shm"
# Seconds until a process counts as left behind: it may be about to end, and helpers wait for a moment of their own.
_LEAVING_S = 2.0
_COMMAND_CHARS = 160
# Not only digits: those are pids and numbers, of any length.
_TEMPORARY = re.compile(r"(.*)(?=.*[a-z])[a-z0-9_]{8}")
# pytest keeps the folders of its last sessions on purpose.
_KEPT_ON_PURPOSE = "pytest-of-"


@dataclass(frozen=True)
class Left:
    """What a run has left behind."""

    processes: tuple[str, ...] = ()  # command lines of processes that still ran
    ports: tuple[str, ...] = ()  # addresses on which these processes listened, such as "127.0.0.1:29500"
    files: tuple[str, ...] = ()  # names of files and folders, such as "/dev/shm/psm_1a2b"

    def beyond(self, usual: Left) -> Left:
        """Return the things of which `usual`, from a run without a fault, has none of the same shape."""
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


class LeftSharedMemory:
    """Tells which files of /dev/shm the processes of a run have made. All programs of the machine share that folder."""

    def __init__(self) -> None:
        """Make the object before the run."""
        self._before = _shared_memory()
        self._own: set[str] = set()

    def look(self) -> None:
        """Look who uses the new files; call it often while the run goes on."""
        if new := _shared_memory() - self._before - self._own:
            for process in living():
                self._own |= new & _files_used_by(process.pid)

    def left(self) -> frozenset[str]:
        """Return the files of the run that still exist."""
        return _shared_memory() & self._own


def _shared_memory() -> frozenset[str]:
    with contextlib.suppress(OSError):
        return frozenset(entry.path for entry in os.scandir(_SHM))
    return frozenset()


def _files_used_by(pid: int) -> set[str]:
    """Return the files that a process has mapped or open."""
    used: set[str] = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        used.update("/" + line.rstrip("\n").partition("/")[2] for line in maps if "/" in line)
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                used.add(os.readlink(entry.path))
    return used


def living() -> list[psutil.Process]:
    """Return the descendants of this process that still run."""
    return [process for process in psutil.Process().children(recursive=True) if not is_dead(process)]


def find_left(temp: Path, shm: LeftSharedMemory) -> Left:
    """Return what a command has left behind that has ended. Its processes must be descendants of this one."""
    shm.look()
    # It reaps those that end. The command's own exit status is known by now.
    psutil.wait_procs(living(), timeout=_LEAVING_S)
    named, ports = [], set()
    for process in living():
        with contextlib.suppress(psutil.Error):
            command = command_of(process.pid) or process.name()
            if is_helper(process.pid, command):
                continue
            named.append(shorten(command, _COMMAND_CHARS).replace("\n", " "))
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.add(f"{connection.laddr.ip}:{connection.laddr.port}")
    files = [str(path) for path in sorted(temp.iterdir()) if not path.name.startswith(_KEPT_ON_PURPOSE)]
    files += sorted(shm.left())
    # The folder of the run is the audit's own, and gone when a person reads this.
    return Left(tuple(named), tuple(sorted(ports)), tuple(file.replace(f"{temp}/", "/tmp/") for file in files))
