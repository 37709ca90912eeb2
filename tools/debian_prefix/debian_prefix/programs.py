"""Runs other programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# Lines of a failed program's output that are shown; apt and pip print the reason at the end.
SHOWN_LINES = 6


class ProgramError(Exception):
    """A program could not be started or ended with an error. The text is the end of its output."""


def run_program(
    command: Sequence[str | Path],
    *,
    lock: int | None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end. An exception in this process, such as an interrupt, ends the program.

    Args:
        command: Program and arguments.
        lock: Descriptor of the cache's lock, which the program inherits; None if it writes elsewhere.
        cwd: Its working directory; None: the caller's.
        environment: Variables to set in addition to the inherited ones.

    Returns:
        Its standard output.

    Raises:
        ProgramError: If it is missing or ends with a status other than 0.
    """
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            # Messages are compared and shown, so they must not be translated.
            env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=() if lock is None else (lock,),
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        raise ProgramError(f"'{command[0]}' is not installed") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        shown = "\n  ".join(lines[-SHOWN_LINES:]) or "(no output)"
        raise ProgramError(f"'{command[0]}' ended with status {done.returncode}:\n  {shown}")
    return done.stdout
