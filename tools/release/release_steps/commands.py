"""Runs commands in the environment of a user: nothing of this program's Python is seen by theirs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

# Python finds the library's own checkout by these; torchrun, CI and Bazel set the others.
_HIDDEN = ("PYTHON", "PYTEST_", "RUNFILES_", "RANK", "WORLD_SIZE", "CI", "BUILD_NUMBER", "VIRTUAL_ENV")
# Lines of a failed command that an error shows.
_SHOWN_LINES = 30


class ReleaseError(Exception):
    """The release cannot be made. The text has three parts: what was observed, the likely cause, the way out."""


def run(command: Sequence[str | Path], folder: Path) -> tuple[int, str]:
    """Run a command to its end. Return its exit code, and what it printed to both streams."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=env | {"COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout


def output_of(command: Sequence[str | Path], folder: Path) -> str:
    """Return what a command prints."""
    code, printed = run(command, folder)
    if code:
        last = "\n  ".join(printed.splitlines()[-_SHOWN_LINES:])
        raise ReleaseError(
            f"'{' '.join(map(str, command))}' ended with {code}:\n  {last}\n"
            "Its output names the cause; without a network pip finds no packages.\n"
            "Repair that, and start the program again."
        )
    return printed
