"""Finds the processes that hold leases, in the kernel's list of locks, for the messages of a wait."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from dist_testing.core.ground.procfs import command_of, content_of
from dist_testing.gpus.gpu import Gpu

_COMMAND_CHARS = 80
# The kernel's list leaves out locks of processes in other PID namespaces.
_UNSEEN = "a process that cannot be seen from here (another PID namespace, such as a sandbox)"


def find_holders(gpus: Sequence[Gpu]) -> dict[Gpu, str]:
    """Return the processes that hold these GPUs, such as "process 12 (//tests:nccl)".

    A GPU that is free, or whose holder cannot be found, is not in the result. The words are the test target that the
    process runs, if its environment can be read, else its command line.
    """
    nodes: dict[str, Gpu] = {}
    for gpu in gpus:
        with contextlib.suppress(OSError):
            status = os.stat(gpu.node)
            nodes[f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"] = gpu
    holders: dict[Gpu, str] = {}
    for line in content_of("/proc/locks").decode("ascii").splitlines():
        # "1: FLOCK  ADVISORY  WRITE 24458 fe:00:2154522 0 EOF"; for a lock that waits, the second word is an arrow.
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and (held := nodes.get(words[5])) is not None:
            holders[held] = _holder(int(words[4]))
    for gpu in gpus:
        with contextlib.suppress(OSError):
            if gpu not in holders and is_locked(gpu.node):
                holders[gpu] = _UNSEEN
    return holders


def is_locked(node: Path) -> bool:
    """Whether any process holds a lease on a node, even one that cannot be seen from here."""
    fd = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A shared lock: two processes that look do not see each other. A process that takes the GPU in this moment
        # finds it locked, and tries again.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holders_of(gpus: Sequence[Gpu]) -> str:
    """Return one line that names the holder of each GPU."""
    by_holder: dict[str, list[str]] = {}
    for gpu, holder in sorted(find_holders(gpus).items(), key=lambda item: item[0].index):
        by_holder.setdefault(holder, []).append(str(gpu.index))
    if not by_holder:
        return "no process has them at this moment"
    return "; ".join(f"GPU {', '.join(indices)}: {holder}" for holder, indices in by_holder.items())


def _holder(pid: int) -> str:
    if pid <= 0:
        return _UNSEEN
    for entry in content_of(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(b"TEST_TARGET="):
            return f"process {pid} ({entry.partition(b'=')[2].decode(errors='replace')})"
    if command := command_of(pid):
        return f"process {pid} ({command[:_COMMAND_CHARS]})"
    return f"process {pid} (it has ended; a process that it started still has the lease)"
