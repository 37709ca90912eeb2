"""The command line of //tools/init."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from consumer_setup.check import drift
from consumer_setup.library import Library, read_library
from consumer_setup.module_file import NAME as MODULE_FILE
from consumer_setup.plan import Plan, plan_setup
from consumer_setup.problem import SetupError
from consumer_setup.write import write_all

_DESCRIPTION = """\
Adds dist_testing to the repository in a folder, or writes a new repository with a first test. It never changes a line
that is there: it adds files, and lines at the end of files. Exit status 0: done, or no difference; 1: a difference, or
the reason why nothing was done; 2: wrong arguments.
"""


def main(arguments: Sequence[str] | None = None, program: Path | None = None) -> int:
    """Run the command.

    Args:
        arguments: Those of the command line; None for the process's own.
        program: A file in tools/init of the library; None for this one's.

    Returns:
        The exit status: 0 if it succeeded, 1 with the reason if not, 2 if the arguments are wrong.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.check and (options.update or options.lock):
        parser.error("--check changes nothing: start the command again with --update or --lock")
    try:
        library = read_library(program or Path(__file__).absolute().parents[1] / "init.py")
        folder = _folder(options.dir)
        if options.check:
            return _check(library, folder)
        return _set_up(library, folder, options)
    except SetupError as error:
        _say(error.problem.text)
        return 1


def _folder(given: str | None) -> Path:
    """Return the repository's folder.

    Raises:
        SetupError: If the working folder is inside another repository.
    """
    # `bazel run` starts programs in their runfiles.
    here = Path(os.environ.get("BUILD_WORKING_DIRECTORY") or Path.cwd())
    if given is not None:
        return here / given
    if workspace := os.environ.get("BUILD_WORKSPACE_DIRECTORY"):
        return Path(workspace)
    if not (here / MODULE_FILE).exists():
        for parent in here.parents:
            if (parent / MODULE_FILE).exists():
                raise SetupError(
                    f"'{here}' is a folder of the repository '{parent}'.",
                    f"It has no {MODULE_FILE} of its own.",
                    f"Name the repository, --dir={parent}, or, for a repository in the repository, --dir=.",
                )
    return here


def _command(folder: Path) -> str:
    """Return how this program was started, for messages."""
    if workspace := os.environ.get("BUILD_WORKSPACE_DIRECTORY"):
        where = "" if Path(workspace) == folder else f" --dir={shlex.quote(str(folder))}"
        return f"bazel run @dist_testing//tools/init --{where}"
    return f"python3 {shlex.quote(sys.argv[0])} --dir={shlex.quote(str(folder))}"


def _check(library: Library, folder: Path) -> int:
    problems = drift(library, folder, _command(folder))
    for problem in problems:
        _say(problem.text)
    if not problems:
        print(f"init: '{folder}' fits dist_testing {library.version}")
    return 1 if problems else 0


def _set_up(library: Library, folder: Path, options: argparse.Namespace) -> int:
    plan = plan_setup(library, folder, hub=options.hub.removeprefix("@"), python=options.python, update=options.update)
    # A typing error in the path makes a repository at another place.
    print(f"init: {'in' if folder.is_dir() else 'a new folder,'} '{folder}'")
    write_all(plan.changes)
    for change in plan.changes:
        print(f"init: {change.verb} {change.said}")
    for text in plan.left:
        print(f"init: left {text}")
    if options.lock and plan.lock_command:
        _lock(plan, folder)
    for step in plan.next_steps:
        print(f"init: next: {step}")
    return 0


def _lock(plan: Plan, folder: Path) -> None:
    """Make the lock file.

    Raises:
        SetupError: If the resolver is not installed or fails. The other files are written.
    """
    shown = shlex.join(plan.lock_command)
    if shutil.which(plan.lock_command[0]) is None:
        raise SetupError(
            f"{plan.lock_command[0]} was not found on PATH.",
            "It resolves the packages; the other files are written.",
            f"Install it (python3 -m pip install uv), and run in '{folder}': {shown}",
        )
    print(f"init: running {shown}", flush=True)
    done = subprocess.run(plan.lock_command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SetupError(
            f"{shown} ended with status {done.returncode}.",
            "Its message is above; the other files are written.",
            f"Correct requirements.in or the index, and run it again in '{folder}'.",
        )
    plan.next_steps.remove(shown)


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"init: {text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="init", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--dir", metavar="FOLDER", help="the repository (default: Bazel's, else the working folder)")
    parser.add_argument("--check", action="store_true", help="change nothing; tell each difference from this version")
    parser.add_argument(
        "--update", action="store_true", help="also replace a dist_testing.bazelrc that differs from this version's"
    )
    parser.add_argument(
        "--hub",
        default="",
        metavar="NAME",
        help="the hub of Python packages: one that is there, or the name of a new one "
        "(default: the one that is there, else pypi)",
    )
    parser.add_argument(
        "--python", default="", metavar="VERSION", help="3.12, for example (default: the toolchain's, else 3.11)"
    )
    parser.add_argument("--lock", action="store_true", help="also make the lock file, with uv")
    return parser
