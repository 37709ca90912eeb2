"""Runs a file as the main program of a process that exists already, as `python file.py` would run it.

The interpreter's own beginning and end are those of the rank. This module repeats what Python does between the two: the
module `__main__`, and after it the non-daemon threads and the exit handlers.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import inspect
import logging
import sys
import threading
import traceback
import weakref
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from multiprocessing import util
from types import ModuleType
from typing import Any


def run_as_main(path: str, arguments: Sequence[str], search_path: Sequence[str]) -> BaseException | None:
    """Run the program to its end: its file, by an absolute path, with its `sys.argv` and `sys.path`.

    Return the exception that has ended it, also `SystemExit`, with a traceback that begins in the program.
    """
    forget_handlers()
    sys.argv[:] = arguments
    sys.path[:] = search_path
    # An interpreter that looked there for modules before may have cached what it saw.
    importlib.invalidate_caches()
    main = _main_module(path)
    try:
        # Python reads the file only now, too: an error there belongs to the program.
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, vars(main))
    except BaseException as error:
        own = error.__traceback__
        # The first entry is that of this function.
        return error.with_traceback(own.tb_next if own is not None else None)
    return None


def exit_status(error: BaseException | None) -> int:
    """Return the exit status of a Python process that this exception ends: 0 to 255."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    # The system keeps the lowest byte.
    return error.code & 0xFF if isinstance(error.code, int) else 1


def print_end(error: BaseException, *, always: bool) -> None:
    """Print what Python prints for the exception that ends a program.

    The report of a rank has the traceback, so it is printed only with `always`; hooks of the program run in any case.
    """
    if isinstance(error, SystemExit):
        if not (error.code is None or isinstance(error.code, int)):
            print(error.code, file=sys.stderr)
        return
    try:
        # torch's hook only adds the rank, which the report names.
        if always or _without_torchs(sys.excepthook) is not sys.__excepthook__:
            sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        # As Python: a broken hook does not hide the end of the program.
        traceback.print_exc()


def _without_torchs(hook: Any) -> Any:
    """Return the exception hook that the program has set, which `init_process_group` has put into one of torch's."""
    while inspect.isfunction(hook) and (hook.__module__ or "").startswith("torch."):
        # As torch's source names it.
        hook = inspect.getclosurevars(hook).nonlocals.get("old_hook", sys.__excepthook__)
    return hook


def end_as_main() -> None:
    """Do what Python does after the end of a main program: wait for threads, then run the exit handlers."""
    # Both are private. multiprocessing ends its children, which have no interpreter of their own either, by them.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _main_module(path: str) -> ModuleType:
    main = ModuleType("__main__")
    # multiprocessing finds the file by `__file__`, if `__spec__` is None.
    vars(main).update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None,
        __file__=path,
        __loader__=SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = main
    return main


def forget_handlers() -> None:
    """Leave out the exit handlers and finalisers that this process has from its parent, or that set up the rank.

    Keep those of the standard library that every program has as soon as it imports the module.
    """
    atexit._clear()
    finalize: Any = weakref.finalize
    with contextlib.suppress(AttributeError):
        # Private: objects that exist already must not be finalised here. A new one registers the exit handler again.
        finalize._registry.clear()
        finalize._registered_with_atexit = False
    # Python runs the last one first.
    atexit.register(logging.shutdown)
    atexit.register(util._exit_function)  # type: ignore[attr-defined]
