"""Reads what the kernel tells about processes and memory. The answer about a process that has ended is empty."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# States of a process that a signal, or a debugger, has stopped.
STOPPED = ("T", "t")
# <linux/sched.h>: the kernel ends the process, or has done so, and its parent has not asked how it ended.
_PF_EXITING = 0x4
# The control groups that limit memory, by their controllers in /proc/self/cgroup, where version 2 has none: the folder
# of all groups, the files with the limit and the use, and the field of `memory.stat` with the cache of files.
_GROUPS = {
    "": ("/sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")),
    "memory": ("/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
}


def content_of(path: str) -> bytes:
    """Return what a file of the kernel says; nothing if it does not exist, or may not be read."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        return file.read()
    return b""


def threads_of(pid: int | None) -> list[str]:
    """Return the ids of all threads of a process."""
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def children_of(pid: int) -> frozenset[int]:
    """Return the pids of the children of a process, zombies included."""
    files = (f"/proc/{pid}/task/{thread}/children" for thread in threads_of(pid))
    return frozenset(int(child) for file in files for child in content_of(file).split())


def command_of(pid: int) -> str:
    """Return the command line of a process. If the main thread has ended, only the other threads still know it."""
    for folder in (f"/proc/{pid}", *(f"/proc/{pid}/task/{thread}" for thread in threads_of(pid))):
        if command := content_of(f"{folder}/cmdline").rstrip(b"\0"):
            return command.replace(b"\0", b" ").decode(errors="replace")
    return ""


def stat_of(pid: int | None, thread: str = "") -> list[str]:
    """Return the fields of proc(5)'s `stat` that follow the name, the state first. For one thread, if it is given."""
    folder = f"/proc/{pid}/task/{thread}" if thread else f"/proc/{pid}"
    # The name, in parentheses, may contain any character.
    return content_of(f"{folder}/stat").rpartition(b")")[2].decode("ascii").split()


def is_ending(pid: int | None) -> bool:
    """Return whether the kernel ends a process, or has ended it without its parent knowing. No signal changes how."""
    # proc(5): the flags are the 9th field.
    return any(int(flags) & _PF_EXITING for flags in stat_of(pid)[6:7])


def status_of(pid: int | None, field: str, thread: str = "") -> str:
    """Return a field of proc(5)'s `status`, but not its first, `Name`; "" if the process has ended."""
    folder = f"/proc/{pid}/task/{thread}" if thread else f"/proc/{pid}"
    rest = content_of(f"{folder}/status").partition(f"\n{field}:".encode())[2]
    return rest.partition(b"\n")[0].decode("ascii").strip()


def writes_of(pid: int | None) -> bytes:
    """Return how often a process has called write(2) or writev(2), in files and sockets; b"" if that is not known."""
    return content_of(f"/proc/{pid}/io").partition(b"syscw: ")[2].partition(b"\n")[0]


def blocked_signals(pid: int | None, thread: str) -> int:
    """Return the mask of the signals that a thread blocks, with bit 0 for signal 1."""
    return int(status_of(pid, "SigBlk", thread) or "0", 16)


def open_descriptors() -> frozenset[int]:
    """Return the open descriptors of this process."""
    # The list holds the descriptor that reads it: the lowest free one, which this finds. To ask for each takes longer.
    own = os.open("/proc/self/fd", os.O_RDONLY | os.O_CLOEXEC)
    os.close(own)
    return frozenset(map(int, os.listdir("/proc/self/fd"))) - {own}


def open_files(pid: int | str = "self") -> dict[int, str]:
    """Return the open descriptors of a process with the kernel's names of their files, such as "socket:[4711]".

    A name takes some microseconds. Raises OSError if the process has ended, or may not be looked at.
    """
    names = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            names[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
    return names


def free_bytes() -> int:
    """Return the memory that is available on the machine and within the limits of this process's control groups."""
    known = dict(line.split(b":", 1) for line in content_of("/proc/meminfo").splitlines())
    free = int(known.get(b"MemAvailable", b"0 kB").split()[0]) << 10
    for folder, (limit_name, used_name, cached_name) in _memory_groups():
        # A group without a limit says "max", which is a ValueError; so is the empty text of a group without the file.
        with contextlib.suppress(ValueError):
            limit, used = (int(content_of(f"{folder}/{name}")) for name in (limit_name, used_name))
            # Copies of files on disk count as used. The kernel drops them when it needs memory, as in MemAvailable.
            cached = content_of(f"{folder}/memory.stat").partition(b"\n%s " % cached_name.encode())[2]
            free = min(free, max(0, limit - used + int(cached.partition(b"\n")[0] or 0)))
    return free


def _memory_groups() -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield the folders of the control groups of this process, from its own to the root, and the names of the files."""
    for line in os.fsdecode(content_of("/proc/self/cgroup")).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers in _GROUPS:
            root, names = _GROUPS[controllers]
            path = path.rstrip("/")
            while path:
                yield f"{root}{path}", names
                path = path.rpartition("/")[0]
            # In a container, its own group.
            yield root, names
