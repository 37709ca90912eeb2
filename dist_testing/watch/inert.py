"""Checks whether several runs may be forked from one process, without a trace of one in the next."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from dist_testing.core.ground.procfs import open_files
from dist_testing.core.launch.clean import unclean_reasons
from dist_testing.watch.files import is_third_party

# Files that are the same for all who open them, and files that are already deleted, such as those of pytest's capture.
_SHARED = ("/dev/", " (deleted)")


class Inertness:
    """Notes what a process has when it begins to import, in order to see what the imports add.

    A process that has threads, children, open files or work to do at its end cannot be copied: the copies would share
    the files and the children, and each would do the work.
    """

    def __init__(self, *, may_hold: bool) -> None:
        """Begin to watch the exit handlers.

        Args:
            may_hold: Whether the imports are third-party code, which registers work for the end of the process that
                is harmless to repeat.
        """
        self._may_hold = may_hold
        self._files = set(open_files().values())
        self._finalizers = _finalizers()
        self._handlers: list[str] = []
        self._register = register = atexit.register

        def noting(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
            frame = sys._getframe(1)
            if not is_third_party(frame.f_code.co_filename):
                self._handlers.append(f"{frame.f_code.co_filename}:{frame.f_lineno} has registered an exit handler")
            return register(function, *args, **kwargs)

        atexit.register = noting

    def obstacles(self) -> list[str]:
        """Stop watching, and return why this process must not be copied; empty if it may."""
        atexit.register = self._register
        found = unclean_reasons()
        if _has_children():
            found.append("a process was started")
        if self._may_hold:
            return found
        found += self._handlers
        if _finalizers() > self._finalizers:
            found.append("an object waits for the end of the process (weakref.finalize), such as a TemporaryDirectory")
        for name in sorted(set(open_files().values()) - self._files):
            if not any(shared in name for shared in _SHARED):
                found.append(f"{name} is open")
        return found


def _finalizers() -> int:
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]
    return sum(bool(info.atexit) for info in list(registry.values()))


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
