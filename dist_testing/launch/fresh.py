"""Fresh interpreters: programs of this library that start with nothing imported.

A program is a module with a function `main(state)`. The state is JSON in a file that the interpreter inherits. Two
programs exist: a rank of its own (`dist_testing.launch.spawn`) and a fork server, where the runner is not fit to be
forked (`dist_testing.launch.fork_server`). Both load the tests again, by a loader that the front end names.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dist_testing.rank.bootstrap import RankContext

__all__ = ["Loader", "ThenBe", "command", "import_first", "load_tests"]

# Given what the ranks have of the run: be what the interpreter was started for. Never returns.
ThenBe = Callable[[RankContext], NoReturn]

# The path first: it may be the only way to this package.
_CODE = (
    "import importlib, json, os, sys; "
    "given = json.load(os.fdopen(int(sys.argv[1]))); "
    "sys.path[:] = given['sys_path']; "
    "importlib.import_module(given['program']).main(given['state'])"
)

_imported_first: list[str] = []


@dataclass(frozen=True, slots=True)
class Loader:
    """How a fresh interpreter finds the tests again.

    Attributes:
        module: A module of a front end, with a function `load(state, then, test)`. It collects or imports the tests,
            calls `then` with the rank context, and does not return.
        state: Arguments of that function, as JSON values.
    """

    module: str
    state: Mapping[str, Any] = field(default_factory=dict)


def import_first(module: str) -> None:
    """Have every fresh interpreter of this run import a module before the tests, as this process did."""
    if module not in _imported_first:
        _imported_first.append(module)


def command(program: str, loader: Loader, state: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return the command line of a fresh interpreter.

    Args:
        program: Module whose `main` the interpreter runs.
        loader: How it finds the tests.
        state: Other arguments of `main`, as JSON values.

    Returns:
        The command, and the descriptor that the interpreter must inherit.
    """
    descriptor = os.memfd_create("dist-testing-fresh", 0)
    loading = {"module": loader.module, "state": dict(loader.state), "import_first": _imported_first}
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        json.dump({"program": program, "state": {**state, "loading": loading}, "sys_path": sys.path}, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    # The flags that this interpreter was started with, as multiprocessing passes them on.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", _CODE, str(descriptor)], descriptor


def loader_of(state: Mapping[str, Any]) -> Loader:
    """Return the loader that `command` was given, in the interpreter that it started."""
    return Loader(state["loading"]["module"], state["loading"]["state"])


def load_tests(state: Mapping[str, Any], then: ThenBe, test: str | None = None) -> NoReturn:
    """Load the tests in a fresh interpreter.

    Args:
        state: The argument of the program's `main`.
        then: Called when the tests are loaded.
        test: The only test that this interpreter runs, as the front end names it; None if it is not known yet.
    """
    for module in state["loading"]["import_first"]:
        importlib.import_module(module)
    loader = loader_of(state)
    importlib.import_module(loader.module).load(loader.state, then, test)
    raise AssertionError(f"{loader.module}.load returned")
