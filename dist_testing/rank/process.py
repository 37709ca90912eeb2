"""Process controls: fork, and what Linux offers beyond Python: parent-death signal and child subreaper."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings

__all__ = ["become_subreaper", "die_with_parent", "fork"]

# <sys/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

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
