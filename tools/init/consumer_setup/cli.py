"""The command line of //tools/init."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from consumer_setup.check import differences
from consumer_setup.library import SetupError, read_library
from consumer_setup.module_file import NAME as MODULE_FILE
from consumer_setup.write import set_up

_DESCRIPTION = """\
Adds dist_testing to the repository in a folder, or writes a new repository with a first test. It never changes a line
that is there: it adds files, and lines at the end of files. Exit status 0: done, or no difference; 1: a difference, or
the reason why nothing was done; 2: wrong arguments.
"""


def main(arguments: Sequence[str] | None = None, program: Path | None = None) -> int:
    """Run the command, by default of this process's command line and this program's library; return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.check and options.update:
        parser.error("--check changes nothing: start the command again with --update")
    try:
        library = read_library(program or Path(__file__).absolute().parents[1] / "init.py")
        folder = _folder(options.dir)
        if options.check:
            problems = list(differences(library, folder, _command(folder)))
            for text in problems:
                sys.stderr.write(f"init: {text}\n")
            if not problems:
                print(f"init: '{folder}' fits dist_testing {library.version}")
            return 1 if problems else 0
        _require_place(folder, library.clone, is_named=options.dir is not None)
        # A typing error in the path makes a repository at another place.
        print(f"init: {'in' if folder.is_dir() else 'a new folder,'} '{folder}'")
        for text in set_up(library, folder, update=options.update):
            print(f"init: {text}")
    except SetupError as error:
        sys.stderr.write(f"init: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(
            f"init: '{error.filename}' cannot be written: {error.strerror}.\n"
            "  The folder is read-only or belongs to another user, or the disk is full.\n"
            "  Make it writable, and run this command again.\n"
        )
        return 1
    return 0


def _folder(given: str | None) -> Path:
    # `bazel run` starts programs in their runfiles.
    here = Path(os.environ.get("BUILD_WORKING_DIRECTORY") or Path.cwd())
    if given is not None:
        return here / given
    return Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or here)


def _require_place(folder: Path, clone: Path, *, is_named: bool) -> None:
    """Refuse folders that are no place for a new repository, and have none."""
    if folder.resolve() == clone.resolve():
        raise SetupError(
            f"'{folder}' is dist_testing itself.",
            "This command adds dist_testing to another repository.",
            "Name that repository: --dir=FOLDER",
        )
    if (folder / MODULE_FILE).exists():
        return
    if (folder / "WORKSPACE").exists():
        raise SetupError(
            f"'{folder}' has WORKSPACE and no {MODULE_FILE}.",
            "It is a repository without modules, and this command writes only module files.",
            f"Follow docs/consumers.md, 'How do I start without modules?', or make an empty {MODULE_FILE} first.",
        )
    parent = next((parent for parent in folder.absolute().parents if (parent / MODULE_FILE).exists()), None)
    if parent is not None and not is_named:
        raise SetupError(
            f"'{folder}' is a folder of the repository '{parent}'.",
            f"It has no {MODULE_FILE} of its own.",
            f"Name the repository, --dir={parent}, or, for a repository in the repository, --dir=.",
        )


def _command(folder: Path) -> str:
    """Return how this program was started, for messages."""
    if workspace := os.environ.get("BUILD_WORKSPACE_DIRECTORY"):
        where = "" if Path(workspace) == folder else f" --dir={shlex.quote(str(folder))}"
        return f"bazel run @dist_testing//tools/init --{where}"
    return f"python3 {shlex.quote(sys.argv[0])} --dir={shlex.quote(str(folder))}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="init", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--dir", metavar="FOLDER", help="the repository (default: Bazel's, else the working folder)")
    parser.add_argument("--check", action="store_true", help="change nothing; tell each difference from this version")
    parser.add_argument(
        "--update", action="store_true", help="also replace a dist_testing.bazelrc that differs from this version's"
    )
    return parser
