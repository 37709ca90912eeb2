"""Reads what the kernel tells about processes and memory. The answer about a process that has ended is empty."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# States of a process that a signal, or a debugger, has stopped.
STOPPED = ("T", "t")


def threads_of(pid: int | None) -> list[str]:
    """Return the ids of all threads of a process."""
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def children_of(pid: int) -> frozenset[int]:
    """Return the pids of the children of a process, zombies included."""
    children: set[int] = set()
    for thread in threads_of(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="utf-8") as listed:
            children.update(map(int, listed.read().split()))
    return frozenset(children)


def command_of(pid: int) -> str:
    """Return the command line of a process. If the main thread has ended, only the other threads still know it."""
    for folder in (f"/proc/{pid}", *(f"/proc/{pid}/task/{thread}" for thread in threads_of(pid))):
        with contextlib.suppress(OSError), open(f"{folder}/cmdline", "rb") as cmdline:
            if command := cmdline.read().rstrip(b"\0"):
                return command.replace(b"\0", b" ").decode(errors="replace")
    return ""


def stat_of(pid: int | None, thread: str = "") -> list[str]:
    """Return the fields of proc(5)'s `stat` that follow the name, the state first. For one thread, if it is given."""
    folder = f"/proc/{pid}/task/{thread}" if thread else f"/proc/{pid}"
    with contextlib.suppress(OSError), open(f"{folder}/stat", "rb") as stat:
        # The name, in parentheses, may contain any character.
        return stat.read().rpartition(b")")[2].decode("ascii").split()
    return []


def status_of(pid: int | None, field: str, thread: str = "") -> str:
    """Return a field of proc(5)'s `status`, but not its first, `Name`; "" if the process has ended."""
    folder = f"/proc/{pid}/task/{thread}" if thread else f"/proc/{pid}"
    with contextlib.suppress(OSError), open(f"{folder}/status", "rb", buffering=0) as status:
        return status.read().partition(f"\n{field}:".encode())[2].partition(b"\n")[0].decode("ascii").strip()
    return ""


def blocked_signals(pid: int | None, thread: str) -> int:
    """Return the mask of the signals that a thread blocks, with bit 0 for signal 1."""
    return int(status_of(pid, "SigBlk", thread) or "0", 16)


def open_files() -> dict[int, str]:
    """Return the open descriptors of this process with the kernel's names of their files, such as "socket:[4711]"."""
    names = {}
    for fd in os.listdir("/proc/self/fd"):
        # The descriptor that read the list is closed by now.
        with contextlib.suppress(OSError):
            names[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    return names


def free_bytes() -> int:
    """Return the memory that is available on the machine and within the limits of this process's control groups."""
    free = 0
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="utf-8") as file:
        known = dict(line.split(":", 1) for line in file)
        free = int(known.get("MemAvailable", "0 kB").split()[0]) << 10
    for folder in _memory_groups():
        with contextlib.suppress(OSError, ValueError):
            limit, used = (_number(f"{folder}/{name}") for name in ("memory.max", "memory.current"))
            free = min(free, max(0, limit - used))
    return free


def _memory_groups() -> Iterator[str]:
    """Yield the folders of the control groups of this process, from its own to the root."""
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if line.startswith("0::/"):
                path = line[3:].rstrip("\n").rstrip("/")
                while path:
                    yield f"/sys/fs/cgroup{path}"
                    path = path.rpartition("/")[0]
    yield "/sys/fs/cgroup"


def _number(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        # A group without a limit says "max", which is a ValueError.
        return int(file.read())
