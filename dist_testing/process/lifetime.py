"""Process controls: fork, and what Linux offers beyond Python: parent-death signal and child subreaper."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import warnings

__all__ = ["become_subreaper", "current_umask", "die_with_parent", "fork", "is_helper", "watch_child"]

# <sys/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# <linux/sched.h>: forked, and has not run another program since.
_PF_FORKNOEXEC = 0x40
# What multiprocessing gives to `python -c`.
_HELPER = re.compile(r"from multiprocessing\.(resource_tracker|forkserver) import main")

# Loaded at import, so that a rank does not have to look for a library between fork and its first frame. None where
# there is no such function (macOS): then clean-up rests on the end of the control socket alone.
_prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)


def _set(option: int, value: int) -> bool:
    return _prctl is not None and _prctl(option, value, 0, 0, 0) == 0


def fork() -> int:
    """`os.fork`, without Python 3.12's warning about any second thread: `launch.clean` judges threads one by one."""
    if sys.version_info < (3, 12):
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def current_umask() -> int:
    """The mask for new files.

    Elsewhere than on Linux it can only be read by setting it, and other threads' files are open to all in between.
    """
    with contextlib.suppress(FileNotFoundError), open("/proc/self/status", "rb") as status:
        for line in status:
            name, _, value = line.partition(b":")
            if name == b"Umask":
                return int(value, 8)
    mask = os.umask(0)
    os.umask(mask)
    return mask


def watch_child(pid: int) -> int:
    """A pidfd of a child that was just made.

    Raises:
        OSError: If there can be none. The child has been killed then: nobody would notice its end.
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        # It can have ended already, and been waited for by others.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, also if the parent has ended already.

    Holds only if the parent forked from its main thread: Linux sends the signal when the forking *thread* ends.
    """
    _set(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def become_subreaper() -> bool:
    """Adopt the orphans among this process's descendants, also those with a session of their own.

    Returns:
        Whether the kernel agreed.
    """
    return _set(_PR_SET_CHILD_SUBREAPER, 1)


def is_helper(pid: int, command: str) -> bool:
    """Whether a process is one that multiprocessing keeps as long as the process that uses it, and that then ends.

    That is the resource tracker, which unlinks the shared memory of processes that were killed, and the fork server;
    not what the fork server forks, which has the same command line.

    Args:
        pid: A process that has not been reaped.
        command: Its command line.
    """
    if not _HELPER.search(command):
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name, in parentheses, may hold anything.
            flags = int(stat.read().rpartition(b")")[2].split()[6])
    except (FileNotFoundError, ProcessLookupError):
        # It has ended, or this is not Linux.
        return True
    return not flags & _PF_FORKNOEXEC
