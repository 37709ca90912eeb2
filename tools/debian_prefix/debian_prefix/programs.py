"""Runs other programs."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    process: subprocess.Popen[str] | None = None
    try:
        # An exception between the start and the assignment would leave the program running.
        with _deferred_signals():
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=cwd,
                # Messages are compared and shown, so they must not be translated.
                env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=() if lock is None else (lock,),
                text=True,
                errors="replace",
            )
        stdout, stderr = process.communicate()
    except FileNotFoundError as error:
        raise ProgramError(f"'{command[0]}' is not installed") from error
    except BaseException:
        if process is not None:
            process.kill()
            process.communicate()
        raise
    if process.returncode:
        lines = (stdout + stderr).strip().splitlines()
        shown = "\n  ".join(lines[-SHOWN_LINES:]) or "(no output)"
        raise ProgramError(f"'{command[0]}' ended with status {process.returncode}:\n  {shown}")
    return stdout


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Delay the signals that end this process until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        # Python handles signals in the main thread only.
        yield
        return
    pending: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _frame: pending.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for pending_number in pending:
            signal.raise_signal(pending_number)
