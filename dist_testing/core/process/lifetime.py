"""Controls processes: fork, pidfds, and Linux's parent-death signal and child subreaper."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.procfs import stat_of, status_of

_Result = TypeVar("_Result")

# <sys/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# <linux/sched.h>: the process was forked, and has not started another program since.
_PF_FORKNOEXEC = 0x40
# What multiprocessing gives to `python -c`; and the program of torch, whose only word is its name.
_HELPER = re.compile(r"from multiprocessing\.(resource_tracker|forkserver) import main|^([^ ]*/)?torch_shm_manager$")
# Loaded at import, so that a rank need not search for a library after the fork. None on macOS, where `check_platform`
# refuses to make processes.
_prctl: Any = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
# Python has these only on Linux. A rank that is a process needs all of them.
_NEEDED = ((os, "pidfd_open"), (os, "memfd_create"), (signal, "SIGRTMIN"))


def check_platform() -> None:
    """Raise LaunchError if the platform lacks a system call that ranks need that are processes: on all but Linux."""
    if missing := [name for module, name in _NEEDED if not hasattr(module, name)]:
        raise LaunchError(
            f"Ranks that are processes cannot be started on {sys.platform}: Python has no {', '.join(missing)} here.\n"
            "The library watches and removes them by system calls that only Linux has.\n"
            "Run the test on Linux, or on threads of this process: derive its class from MultiThreadedTestCase."
        )


def _set(option: int, value: int) -> bool:
    return bool(_prctl(option, value, 0, 0, 0) == 0)


def fork() -> int:
    """Fork without Python 3.12's warning about other threads: `launch.clean` checks each thread."""
    if sys.version_info < (3, 12):
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_new_thread(function: Callable[[], _Result]) -> _Result:
    """Return what a function returns in a new thread, or raise what it raises. Use it for forks.

    The threads of OpenMP belong to the thread that used them first. In a child that this thread forks, the next
    computation would wait for them forever; a new thread, which is the only one of its child, gets new ones.
    """
    returned: list[_Result] = []
    raised: list[BaseException] = []

    def body() -> None:
        try:
            returned.append(function())
        except BaseException as error:
            raised.append(error)

    # Not an executor: in the child, that would wait at the exit for its own thread.
    thread = threading.Thread(target=body, name="fork")
    thread.start()
    thread.join()
    for error in raised:
        raise error
    return returned[0]


def current_umask() -> int:
    """Return this process's mask for new files.

    `os.umask` has to set the mask to read it. Meanwhile all users could read the files of other threads.
    """
    return int(status_of(os.getpid(), "Umask"), 8)


def watch_child(pid: int) -> int:
    """Return a pidfd of a child that was just forked.

    After an OSError, because the kernel gives none, the child is dead: nothing would notice its end.
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        # The child may have ended, and other code may have waited for it.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise


def end_child(pidfd: int, limit_s: float) -> bool:
    """Wait until a child that was told to end has ended, kill it if it has not after `limit_s` seconds, and reap it.

    Closes the pidfd. Returns whether the exit code was 0.

    Raises:
        ChildProcessError: If other code has reaped it.
    """
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    try:
        if not poller.poll(1000 * limit_s):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    finally:
        os.close(pidfd)
    return ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel kill this process, or send it another signal, when its parent ends. If it has ended, exit.

    The parent must fork from its main thread, because Linux sends the signal when the forking *thread* ends.
    """
    _set(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(1)


def become_subreaper() -> bool:
    """Make this process adopt its orphaned descendants of all sessions. Return whether the kernel agreed."""
    return _set(_PR_SET_CHILD_SUBREAPER, 1)


def is_helper(pid: int, command: str) -> bool:
    """Return whether a process is a helper of multiprocessing, which ends by itself after the process that uses it.

    That is the resource tracker, which unlinks the shared memory of processes that were killed; the manager of torch's
    `file_system` sharing, which does the same; and the fork server, but not what the fork server forks, which has the
    same command line. The process must not have been reaped.
    """
    if not _HELPER.search(command):
        return False
    # The flags are the ninth field of all. Without an answer the process has ended.
    stat = stat_of(pid)
    return not (stat and int(stat[6]) & _PF_FORKNOEXEC)
