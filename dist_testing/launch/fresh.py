"""Fresh interpreters: a rank of its own (`spawn`), or a template where the runner cannot be forked.

What runs in one comes through a file that it inherits, as JSON: how to find the tests again (the loader), and what to
be.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dist_testing.errors import LaunchError
from dist_testing.launch import wire
from dist_testing.rank.board import PhaseBoard
from dist_testing.rank.bootstrap import RankSide, RankStart, enter, take_over
from dist_testing.rank.capture import own_streams, redirect_output
from dist_testing.rank.environment import torchrun_env
from dist_testing.rank.frames import FrameWriter
from dist_testing.rank.process import die_with_parent
from dist_testing.rank.reporter import Reporter
from dist_testing.rank.stacks import answer_with_stacks

__all__ = ["Loader", "become_rank", "command", "import_first", "main", "unittest_loader"]

# How a fresh interpreter finds the tests: {"door": "pytest", ...} or {"door": "unittest", ...}.
Loader = Mapping[str, Any]
# Given the loader, collects or imports the tests and hands over what ranks have of them; then it must not come back.
_Then = Callable[[RankSide], NoReturn]

# The path first: it may be the only way to this package.
_CODE = (
    "import json, os, sys; "
    "state = json.load(os.fdopen(int(sys.argv[1]))); "
    "sys.path[:] = state['sys_path']; "
    "from dist_testing.launch.fresh import main; "
    "main(state)"
)

_imported_first: list[str] = []


def import_first(module: str) -> None:
    """Have every fresh interpreter of this run import a module before the tests, as this process did."""
    if module not in _imported_first:
        _imported_first.append(module)


def command(state: Mapping[str, Any]) -> tuple[list[str], int]:
    """The command line of a fresh interpreter.

    Args:
        state: What it is to be; sys.path is added.

    Returns:
        The command, and the descriptor that it must inherit.
    """
    descriptor = os.memfd_create("dist-testing-fresh", 0)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        loader = {**state["loader"], "import_first": _imported_first}
        json.dump({**state, "loader": loader, "sys_path": sys.path}, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    # The flags that this interpreter was started with, as multiprocessing passes them on.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", _CODE, str(descriptor)], descriptor


def become_rank(start: RankStart, loader: Loader) -> NoReturn:
    """Replace this process, just forked, by a fresh interpreter that is the rank."""
    die_with_parent(start.template_pid)
    arguments, descriptor = command(
        {
            "role": "rank",
            "loader": dict(loader),
            "start": dataclasses.asdict(start),
        }
    )
    for fd in (*start.fds, descriptor):
        os.set_inheritable(fd, True)
    # What is read at import must be there before Python is.
    request = start.request
    place = {"RANK": str(start.rank), "LOCAL_RANK": str(start.rank)}
    os.execve(arguments[0], arguments, request.env | torchrun_env(request.size, request.store_port) | place)


def main(state: dict[str, Any]) -> NoReturn:
    """Be what `state` says."""
    loader = state["loader"]
    if state["role"] == "template":
        _be_template(loader, state["control_fd"], state["run_directories"], state["runner_pid"])
    given = state["start"]
    start = RankStart(**{**given, "request": wire.WorldRequest(**given["request"])})
    # What imports print belongs to the rank, too.
    own_streams()
    redirect_output(os.path.join(start.request.directory, f"rank-{start.rank}.log"))
    die_with_parent(start.template_pid)
    for fd in start.fds:
        os.set_inheritable(fd, False)
    # Imports can hang, too.
    answer_with_stacks(start.stacks_fd)
    try:
        _load(loader, lambda side: _enter_prepared(start, side), start.request.body.get("nodeid"))
    except BaseException as error:
        with socket.socket(fileno=start.channel_fd) as channel:
            # Imports are test code: this is the test's failure, and not the machine's.
            reporter = Reporter(FrameWriter(channel), PhaseBoard(start.board_fd, start.request.size), start.rank)
            reporter.phase("import")
            reporter.raised(error)
    finally:
        os._exit(1)


def _enter_prepared(start: RankStart, side: RankSide) -> NoReturn:
    take_over(start.request)
    side.prepare()
    enter(start, side)


def _be_template(loader: Loader, control_fd: int, run_directories: Sequence[str], runner_pid: int) -> NoReturn:
    from dist_testing.launch.template import serve

    # Until it serves, it has nothing to clean up; then it outlives the runner on purpose, to do so.
    if os.getppid() != runner_pid:
        os._exit(1)
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    try:
        _load(loader, lambda side: serve(control, side, loader, run_directories))
    except BaseException as error:
        wire.send(control, {"event": "unfit", "world": 0, "text": str(error)})
    finally:
        os._exit(1)


def _load(loader: Loader, then: _Then, nodeid: str | None = None) -> NoReturn:
    for module in loader["import_first"]:
        importlib.import_module(module)
    if loader["door"] == "pytest":
        _load_pytest(loader, then, nodeid)
    from dist_testing.doors.rank_unittest import UnittestSide

    _import_main(loader["main_path"], loader["main_name"])
    then(UnittestSide())


def _load_pytest(loader: Loader, then: _Then, nodeid: str | None) -> NoReturn:
    import pytest

    from dist_testing.doors import pytest_plugin

    arguments: Sequence[str] = [*loader["arguments"], "-p", "no:cacheprovider", "--no-header", "-qq"]
    os.chdir(loader["directory"])
    session = pytest_plugin.FreshSession(loader, then, nodeid)
    code = pytest.main([*arguments], plugins=[session, pytest_plugin])
    if session.errors:
        raise LaunchError("\n".join(["The tests could not be imported in a fresh interpreter.", *session.errors]))
    raise LaunchError(
        f"Collecting the tests again in a fresh interpreter ended with pytest's exit code {int(code)}.\n"
        "The test files, or what they import, behave differently in a second process.\n"
        "The output of rank 0 shows what pytest said."
    )


def unittest_loader() -> Loader:
    """The loader for this process's tests under plain unittest: they are imported by name, but for the main module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return {
        "door": "unittest",
        "main_name": spec.name if spec is not None else None,
        "main_path": getattr(main, "__file__", None) if spec is None else None,
    }


def _import_main(path: str | None, name: str | None) -> None:
    """Import what Python was started with, as multiprocessing does: not under the name that makes it run its tests."""
    if name is not None and not name.endswith("__main__"):
        content = runpy.run_module(name, run_name="__mp_main__", alter_sys=True)
    elif path is not None:
        content = runpy.run_path(path, run_name="__mp_main__")
    else:
        # `python -m unittest`: its main module holds no tests, and would start to run some.
        return
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
