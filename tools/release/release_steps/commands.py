"""Runs commands as a user: nothing of this program's Python is seen by theirs. Makes virtual environments for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Python finds the library's own checkout by these; torchrun, CI and Bazel set the others.
_HIDDEN = ("PYTHON", "PYTEST_", "RUNFILES_", "RANK", "WORLD_SIZE", "CI", "BUILD_NUMBER", "VIRTUAL_ENV")
# Lines of a failed command that an error shows.
_SHOWN_LINES = 30

# Left out of what the environment sees: what the wheel itself brings, and what it must work without.
_LEFT_OUT = ("__editable__", "__pycache__", "bazel_runfiles", "dist_testing", "pip", "runfiles", "setuptools")


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


def make_environment(folder: Path, python: Path | str, site: Path | None = None) -> Path:
    """Make a virtual environment, and return its interpreter.

    It sees the packages of the folder `site` that are not left out. Without `site`, pip installs torch.
    """
    output_of([python, "-m", "venv", folder], folder.parent)
    if site is not None:
        links = folder / "seen"
        links.mkdir()
        for entry in site.iterdir():
            if not entry.name.startswith(_LEFT_OUT) and entry.suffix != ".pth":
                (links / entry.name).symlink_to(entry)
        (packages,) = (folder / "lib").glob("python*/site-packages")
        (packages / "seen.pth").write_text(f"{links}\n", encoding="utf-8")
    return folder / "bin" / "python"


def make_tools(folder: Path, lock: Path) -> Path:
    """Make a virtual environment with the packages of a file of `tools/python/lock.py`, and return its interpreter.

    Raises:
        ReleaseError: If pip cannot install them.
    """
    python = make_environment(folder, sys.executable)
    output_of([python, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", lock], folder.parent)
    return python
