"""Runs a script on every rank of a world: `python -m dist_testing.run_program --world-size=4 train.py --steps=10`.

Use it where torchrun would start the script. The ranks have torchrun's variables, so `init_process_group()` works as
there. The run ends with one verdict, and with the report of the rank that failed first.

Exit status: 0 if every rank passed, or every rank skipped; 1 if the run failed, or the world is not possible; 2 if the
command line, `--fault` or `--expected-exit` has a wrong form, the isolation or backend is not for programs, or the run
was interrupted; 4 if the value of another option is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.errors import AddOnError, UsageError
from dist_testing.core.ground.outcomes import EXIT_CODES
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE
from dist_testing.core.launch.isolation import FORK, SPAWN
from dist_testing.core.rank.capture import debug_by
from dist_testing.programs.program import Program, check_program

_COMMAND = "python -m dist_testing.run_program"
_EXIT = "RANK=CODE"
_FAULT = "SECONDS=CALL"
# As argparse and Python end after a wrong command line.
_WRONG_COMMAND = 2
# Options that pytest reads, as `--dist-NAME`, each with its metavar and help. Its errors have that name, so the command
# takes it, too.
_READ_BY_PYTEST = {
    "world-size": ("N[,N...]", f"ranks; each number makes a run (default: {DEFAULT_WORLD_SIZE})"),
    "backend": ("NAME", "backend of the ranks (default: gloo)"),
    "isolation": ("ISOLATION", f"{FORK.name} (default) or {SPAWN.name}"),
    "nodes": ("N", "simulated nodes that the ranks are spread over (default: 1)"),
    "timeout": ("SECONDS", "limit of a run (default: none)"),
    "events": ("FILE", "write what happens in the run, with times, as JSON lines"),
    "debug-rank": ("RANK", "give this rank the terminal, for breakpoint()"),
}


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
    for name, (metavar, text) in _READ_BY_PYTEST.items():
        parser.add_argument(f"--{name}", f"--dist-{name}", metavar=metavar, help=text)
    for option, metavar, text in (
        ("--expected-exit", _EXIT, "how the process of a rank must end; a negative code is a signal, as in 1=-9"),
        ("--fault", _FAULT, "a fault that the runner causes, seconds after the start of the script, as in 3=kill(2)"),
    ):
        parser.add_argument(option, metavar=metavar, action="append", default=[], help=f"{text}; may be repeated")
    parser.add_argument("--junit", metavar="FILE", help="write the result as JUnit's XML")
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
    values = {name: getattr(given, name.replace("-", "_")) for name in _READ_BY_PYTEST}
    options = [f"--dist-{name}={value}" for name, value in values.items() if value is not None]
    if given.junit is not None:
        options.append(f"--junitxml={given.junit}")
    planned = tuple(sorted(map(_fault, given.fault), key=lambda one: one.after_s))
    program = Program(
        path=path,
        name=given.script,
        arguments=tuple(given.arguments),
        # Python has put the current folder first, because of `-m`. A script has its own folder there, links resolved.
        search_path=(os.path.dirname(os.path.realpath(path)), *sys.path[0 if sys.flags.safe_path else 1 :]),
        expected_exits=dict(map(_exit, given.expected_exit)),
        has_limit=given.timeout is not None,
        settings={"faults": planned} if planned else {},
    )
    return program, options


def _exit(text: str) -> tuple[int, int]:
    parts = re.fullmatch("([0-9]{1,9})=(-?[0-9]{1,3})", text)
    if parts is None or int(parts[2]) not in EXIT_CODES:
        raise UsageError(
            f"--expected-exit={text}: expected {_EXIT}.\n"
            "The process of a rank must end so: by an exit code, at most 255, or by a signal, as a negative number.\n"
            "Write --expected-exit=1=3, or --expected-exit=1=-9."
        )
    return int(parts[1]), int(parts[2])


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
