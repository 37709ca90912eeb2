"""Fresh interpreters: programs of this library that start with nothing imported.

A program is a module with a function `main(order)`. The order is the text of a `FreshProgram`, in a file that the
interpreter inherits. Two programs exist: a rank of its own (`dist_testing.launch.spawn`), and a fork server where the
runner is not fit to be forked (`dist_testing.launch.fork_server`). Both load the tests again, by a loader that the
front end names.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from dist_testing.errors import MessageError
from dist_testing.process.messages import FRESH_PROGRAMS, FreshProgram, Loader
from dist_testing.rank.bootstrap import RankContext

__all__ = ["ThenBe", "command", "import_first", "load_tests", "order_for", "with_imports"]

# Given the rank context: be the process that the interpreter was started for. Never returns.
ThenBe = Callable[[RankContext], NoReturn]

# The path first: it may be the only way to this package.
_CODE = (
    "import importlib, json, os, sys; "
    "given = json.load(os.fdopen(int(sys.argv[1]))); "
    "sys.path[:] = given['sys_path']; "
    "importlib.import_module(given['program']).main(given['order'])"
)

_Program = TypeVar("_Program", bound=FreshProgram)

_imported_first: list[str] = []


def import_first(module: str) -> None:
    """Have every fresh interpreter of this run import a module before the tests, as this process did."""
    if module not in _imported_first:
        _imported_first.append(module)


def with_imports(loader: Loader) -> Loader:
    """Return the loader with the modules that this process has imported first."""
    return dataclasses.replace(loader, import_first=tuple(_imported_first))


def command(program: str, order: FreshProgram) -> tuple[list[str], int]:
    """Return the command line of a fresh interpreter.

    Args:
        program: Module whose `main` the interpreter runs.
        order: What the interpreter is to be.

    Returns:
        The command, and the descriptor that the interpreter must inherit.
    """
    descriptor = os.memfd_create("dist-testing-fresh", 0)
    text = FRESH_PROGRAMS.to_wire(order).decode()
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        # Without a schema: the interpreter reads this part before it can import anything of this library.
        json.dump({"program": program, "order": text, "sys_path": sys.path}, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    # The flags that this interpreter was started with, as multiprocessing passes them on.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", _CODE, str(descriptor)], descriptor


def order_for(program: type[_Program], text: str) -> _Program:
    """Return the order that `command` was given, in the interpreter that it started; end the process if it is none."""
    try:
        order = FRESH_PROGRAMS.from_wire(text)
        if not isinstance(order, program):
            raise FRESH_PROGRAMS.refused(f"{type(order).__name__} for another program; expected {program.__name__}")
    except MessageError as error:
        # The process does not know yet where to report it; its output goes to the log of the run.
        raise SystemExit(str(error)) from None
    return order


def load_tests(loader: Loader, then: ThenBe, test: str | None = None) -> NoReturn:
    """Load the tests in a fresh interpreter.

    Args:
        loader: How.
        then: Called when the tests are loaded.
        test: The only test that this interpreter runs, as the front end names it; None if it is not known yet.
    """
    for module in loader.import_first:
        importlib.import_module(module)
    importlib.import_module(loader.module).load(loader.state, then, test)
    raise AssertionError(f"{loader.module}.load returned")
