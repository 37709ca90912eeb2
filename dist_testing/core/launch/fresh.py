"""Starts programs of this library in fresh interpreters, which have imported nothing.

A program is a module with a function `main(order)`. The order is the text of a `FreshProgram`, in a file that the
interpreter inherits. There are two programs: a rank, for isolation "spawn" (this module), and the fork server of a
runner that is unfit to be forked (`core.launch.fork_server`). Both load the tests again, with the front end's `Loader`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

from dist_testing.core.ground.error_text import format_error
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.process.launcher_messages import (
    FRESH_PROGRAMS,
    FreshProgram,
    FreshRank,
    Loader,
    RankStart,
    log_name,
)
from dist_testing.core.process.lifetime import die_with_parent
from dist_testing.core.process.refusal import refusal
from dist_testing.core.process.stacks import answer_with_stacks
from dist_testing.core.rank.bootstrap import (
    FAILED_EXIT_CODE,
    RankContext,
    enter,
    enter_place,
    rank_reporter,
    take_over,
    world_env,
)
from dist_testing.core.rank.capture import own_streams, redirect_output

# Takes the rank context, and runs the program. Never returns.
ThenBe = Callable[[RankContext], NoReturn]

# `sys.path` comes first, because it may be the only way to this package. `python -c` also finds modules in the current
# folder, whose types.py may be the user's.
_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import importlib, json, os; "
    "file = os.fdopen(int(sys.argv[1])); "
    "given = json.load(file); "
    "file.close(); "
    "sys.path[:] = given['sys_path']; "
    "importlib.import_module(given['program']).main(given['order'])"
)

_imported_first: list[str] = []


def import_first(module: str) -> None:
    """Make every fresh interpreter of this run import a module before the tests, as this process did."""
    if module not in _imported_first:
        _imported_first.append(module)


def as_here(loader: Loader) -> Loader:
    """Return the loader with this process's arguments, and the modules of all `import_first` calls."""
    return dataclasses.replace(loader, import_first=tuple(_imported_first), argv=tuple(map(str, sys.argv)))


def command(program: str, order: FreshProgram) -> tuple[list[str], int]:
    """Return the command line of a fresh interpreter, and the descriptor that it must inherit.

    The interpreter calls `main` of the module `program` with the order.
    """
    return interpreter(program, FRESH_PROGRAMS.to_wire(order).decode())


def interpreter(program: str, text: str) -> tuple[list[str], int]:
    """Return the same for a program whose order is any text, such as one of an add-on."""
    descriptor = os.memfd_create("dist-testing-fresh", 0)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        # No schema: the interpreter reads this part before it can import this library. Python ignores an entry that is
        # no string, such as a pathlib.Path.
        sys_path = [entry for entry in sys.path if isinstance(entry, str)]
        json.dump({"program": program, "order": text, "sys_path": sys_path}, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    # multiprocessing uses the same function to pass on the flags of the interpreter.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", _CODE, str(descriptor)], descriptor


def load_tests(loader: Loader, then: ThenBe, test: str | None = None) -> NoReturn:
    """Load the tests in a fresh interpreter, and call `then` with the rank context.

    `test` is the front end's name of the only test that this interpreter runs; None if it is not known yet.
    """
    sys.argv[:] = loader.argv
    for module in loader.import_first:
        importlib.import_module(module)
    importlib.import_module(loader.module).load(loader.state, then, test)
    raise AssertionError(f"{loader.module}.load returned")


def become_rank(start: RankStart, loader: Loader) -> NoReturn:
    """Replace this process, which was just forked, by a fresh interpreter that is the rank."""
    die_with_parent(start.fork_server_pid)
    request = start.request
    rank_env = request.layout.rank_env(start.rank)
    try:
        enter_place(start)
        start = dataclasses.replace(start, place_fds=())
        arguments, descriptor = command(__name__, FreshRank(start, as_here(loader)))
        for fd in (*start.fds, descriptor):
            os.set_inheritable(fd, True)
        # Complete from the start: some libraries read their variables when they are imported.
        os.execve(arguments[0], arguments, {**world_env(request.env, request.layout, request.store_port), **rank_env})
    except Exception as error:
        why = refusal(error) if isinstance(error, OSError) else format_error(error)
        text = f"Rank {start.rank} cannot become a fresh interpreter: {why}"
        rank_reporter(start, socket.socket(fileno=start.channel_fd)).never_started(LaunchError(text))
    finally:
        os._exit(FAILED_EXIT_CODE)


def main(text: str) -> NoReturn:
    """Be the rank, in the interpreter that `become_rank` starts."""
    order = FRESH_PROGRAMS.from_wire(text)
    assert isinstance(order, FreshRank)
    start = order.start
    # The output of imports belongs to the rank, too.
    redirect_output(os.path.join(start.request.directory, log_name(start.rank)))
    own_streams()
    die_with_parent(start.fork_server_pid)
    for fd in start.fds:
        os.set_inheritable(fd, False)
    # Imports can hang, too.
    answer_with_stacks(start.stacks_fd)
    channel = socket.socket(fileno=start.channel_fd)
    reporter = rank_reporter(start, channel)
    reporter.importing()

    def be_rank(context: RankContext) -> NoReturn:
        take_over(start.request)
        context.prepare()
        # The descriptor belongs to `enter` now.
        channel.detach()
        enter(start, context)

    try:
        load_tests(order.loader, be_rank, start.request.body.only_test)
    except BaseException as error:
        # Imports run test code: an error there is the test's failure, and not the machine's.
        reporter.phase("import")
        reporter.raised(error)
    finally:
        os._exit(1)
