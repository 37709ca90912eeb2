"""Runs a script on every rank of a world: `python -m dist_testing.run_program --world-size=4 train.py --steps=10`.

Use it where torchrun would start the script. The ranks have torchrun's variables, so `init_process_group()` works as
there. The run ends with one verdict, and with the report of the rank that failed first.

Exit status: 0 if every rank passed, or every rank skipped; 1 if the run failed; 2 if the command line is wrong, or the
run was interrupted; 4 if the run is not possible with these options.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from dist_testing.core.ground.add_ons import add_on_named, read_settings
from dist_testing.core.ground.backends import backend_named, default_backend
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, timeout_in
from dist_testing.core.ground.errors import AddOnError, UsageError
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE, check_world_size
from dist_testing.core.launch.isolation import FORK, SPAWN, isolation_named
from dist_testing.core.rank.debugging import debug_by
from dist_testing.programs.program import NO_LIMIT_S, Program, check_isolation_of_program, check_program

_COMMAND = "python -m dist_testing.run_program"
_EXIT = "RANK=CODE"
_FAULT = "SECONDS=CALL"
# As argparse and Python end after a wrong command line.
_WRONG_COMMAND = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the command line names, by default this process's, and return the exit status.

    `arguments` are without the command.
    """
    given = _parser().parse_args(arguments)
    try:
        program, options = _read(given)
    except (AddOnError, UsageError) as error:
        print(error, file=sys.stderr)
        return _WRONG_COMMAND

    import pytest

    from dist_testing.core.pytest import plugin as pytest_plugin
    from dist_testing.programs.items import ProgramPlugin, command_line

    debug_by(_COMMAND)
    command = [*command_line(program.path), f"--rootdir={os.path.dirname(program.path)}", "-q", "-rs", *options]
    return int(pytest.main(command, plugins=[ProgramPlugin(program), pytest_plugin]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_COMMAND,
        description="Run a script on every rank of a world, with one verdict.",
        epilog="Everything after the script belongs to the script.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--world-size", metavar="N[,N...]", help=f"ranks; each number makes a run (default: {DEFAULT_WORLD_SIZE})"
    )
    parser.add_argument("--backend", metavar="NAME", help=f"backend of the ranks (default: {default_backend().name})")
    parser.add_argument("--isolation", metavar="ISOLATION", help=f"{FORK.name} (default) or {SPAWN.name}")
    parser.add_argument("--nodes", metavar="N", help="simulated nodes that the ranks are spread over (default: 1)")
    parser.add_argument("--timeout", metavar="SECONDS", help="limit of a run (default: none)")
    parser.add_argument(
        "--expected-exit",
        metavar=_EXIT,
        action="append",
        default=[],
        help="how the process of a rank must end; a negative code is a signal, as in 1=-9; may be repeated",
    )
    parser.add_argument(
        "--fault",
        metavar=_FAULT,
        action="append",
        default=[],
        help="a fault that the runner causes, seconds after the start of the script, as in 3=kill(2); may be repeated",
    )
    parser.add_argument("--events", metavar="FILE", help="write what happens in the run, with times, as JSON lines")
    parser.add_argument("--junit", metavar="FILE", help="write the result as JUnit's XML")
    parser.add_argument(
        "--debug-rank", "--dist-debug-rank", metavar="RANK", help="give this rank the terminal, for breakpoint()"
    )
    parser.add_argument("script", nargs="?", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _read(given: argparse.Namespace) -> tuple[Program, list[str]]:
    """Return the program, and pytest's options for the settings; refuse impossible arguments."""
    if given.script is None:
        raise UsageError(
            f"{_COMMAND}: expected a script; got none.\n"
            "Every rank runs it as its main program. Options of the library come before it, and its own after it.\n"
            f"Write {_COMMAND} --world-size=4 train.py --steps=10, for example."
        )
    if "RANK" in os.environ:
        raise UsageError(
            f"{given.script}: this process is already a rank (RANK={os.environ['RANK']}).\n"
            "torchrun or another launcher has started it, and the library starts the ranks of a program itself.\n"
            f"Run `{_COMMAND}` once, without a launcher; or unset RANK."
        )
    path = os.path.abspath(given.script)
    check_program(path)
    options = []
    for option, value, checked in (
        ("--dist-backend", given.backend, lambda name: backend_named(name).name),
        ("--dist-world-size", given.world_size, _sizes),
        ("--dist-nodes", given.nodes, _nodes),
        ("--dist-isolation", given.isolation, _isolation),
        ("--dist-events", given.events, str),
        ("--junitxml", given.junit, str),
        ("--dist-debug-rank", given.debug_rank, str),
    ):
        if value is not None:
            options.append(f"{option}={checked(value)}")
    planned = tuple(sorted(map(_fault, given.fault), key=lambda one: one.after_s))
    program = Program(
        path=path,
        name=given.script,
        arguments=tuple(given.arguments),
        # Python has put the current folder first, because of `-m`. A script has its own folder there, links resolved.
        search_path=(os.path.dirname(os.path.realpath(path)), *sys.path[0 if sys.flags.safe_path else 1 :]),
        expected_exits=dict(map(_exit, given.expected_exit)),
        timeout_s=_timeout_s(given.timeout),
        settings={"faults": planned} if planned else {},
    )
    return program, options


def _sizes(text: str) -> str:
    way_out = "Write --world-size=4, or --world-size=2,4 for two runs."
    return ",".join(str(check_world_size("--world-size", _number(size), way_out)) for size in text.split(","))


def _nodes(text: str) -> str:
    read_settings("--nodes", {"nodes": _number(text)})
    return text


def _isolation(name: str) -> str:
    check_isolation_of_program("--isolation", isolation_named(name))
    return name


def _number(text: str) -> object:
    return int(text) if text.isascii() and text.isdecimal() else text


def _timeout_s(text: str | None) -> float:
    if text is None:
        return NO_LIMIT_S
    if (value := timeout_in(text)) is None:
        raise UsageError(
            f"--timeout={text}: expected a number of seconds above 0, up to {MAX_TIMEOUT_S}.\n"
            "It is the limit of a run, from the moment when all ranks are ready.\n"
            "Write --timeout=60, for example, or leave it out: a proven hang ends without it."
        )
    return value


def _exit(text: str) -> tuple[int, int]:
    rank, _, code = text.partition("=")
    if not (rank.isascii() and rank.isdecimal() and code.removeprefix("-").isdecimal() and code.isascii()):
        raise UsageError(
            f"--expected-exit={text}: expected {_EXIT}.\n"
            "It says how the process of a rank must end: by an exit code, or by a signal, as a negative number.\n"
            "Write --expected-exit=1=3, or --expected-exit=1=-9."
        )
    return int(rank), int(code)


def _fault(text: str) -> Any:
    after, _, call = text.partition("=")
    try:
        after_s: object = float(after)
    except ValueError:
        after_s = after
    read = add_on_named("faults", f"--fault={text}").load("setting")
    (planned,) = read(f"--fault={text}", {after_s: call}, "Write --fault='3=kill(2)', for example.")
    return planned


if __name__ == "__main__":
    raise SystemExit(main())
