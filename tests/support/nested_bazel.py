"""Bazel in a workspace of its own, for checks of what a consumer of the module gets.

A Bazel inside Bazel's sandbox does not find what it needs from the machine, so such checks are programs and not tests:
`python3 -m e2e.check`, and similar ones, from the root of the repository.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Root of the repository. A program that `bazel run` starts is not in the source tree.
ROOT = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or Path(__file__).resolve().parents[2])

# Limit in seconds: one command may install torch's wheel and run tests.
COMMAND_LIMIT_S = 900


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    status: int  # Bazel's exit status
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Standard output followed by standard error."""
        return self.stdout + self.stderr


@dataclass(frozen=True, slots=True)
class NestedBazel:
    """A workspace and the server that belongs to it."""

    workspace: Path
    output_root: Path  # the folder that contains all files of the server
    bazel: str  # the program
    common: tuple[str, ...] = ()  # more options after every command

    def run(self, command: str, *arguments: str, limit_s: float = COMMAND_LIMIT_S) -> Done:
        """Run one command with its options and targets, whatever its exit status.

        Raises subprocess.TimeoutExpired after the limit.
        """
        call = [self.bazel, f"--output_user_root={self.output_root}", command]
        call += ["--color=no", "--curses=no", "--lockfile_mode=off"]
        done = subprocess.run(
            [*call, *self.common, *arguments],
            cwd=self.workspace,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def stand_in(self, folder: Path, name: str = "bazel") -> Path:
        """Write a program that starts this Bazel, for programs and lines of pages that start `bazel` themselves."""
        program = folder / name
        call = shlex.join([self.bazel, f"--output_user_root={self.output_root}"])
        # bazelw searches Bazel on PATH, and must not find this program.
        program.write_text(f'#!/bin/sh\nPATH={shlex.quote(os.environ["PATH"])} exec {call} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return program


@contextmanager
def nested_bazel(
    workspace: Path, output_root: Path, *, bazel: str = "", common: tuple[str, ...] = ()
) -> Iterator[NestedBazel]:
    """Give a workspace a server, which ends with the block; the arguments are those of `NestedBazel`.

    The sandbox has a /tmp of its own, so `output_root` is not below it. An empty `bazel` is bazelw.
    """
    nested = NestedBazel(workspace, output_root, bazel or str(ROOT / "bazelw"), common)
    try:
        yield nested
    finally:
        nested.run("shutdown")


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Create a folder in the user's cache, and remove it after the block."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=cache, prefix=f"{name}."))
    try:
        yield folder
    finally:
        # Bazel removes the write permission from what it fetched. There may be 100,000 files.
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
        subprocess.run(["rm", "-rf", str(folder)], check=True)
