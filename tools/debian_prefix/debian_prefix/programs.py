"""Runs other programs."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

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
    """Run a program to its end.

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
    with _started(command, lock=lock, cwd=cwd, environment=environment) as process:
        stdout, stderr = process.communicate()
    _require_success(command, process.returncode, stdout + stderr)
    return stdout.decode(errors="replace")


def run_pipe(source: Sequence[str | Path], sink: Sequence[str | Path], *, lock: int) -> None:
    """Run two programs; the second reads the output of the first.

    Args:
        source: Program and arguments; its standard error must be short.
        sink: Program and arguments.
        lock: Descriptor of the cache's lock, which both inherit.

    Raises:
        ProgramError: If one of them is missing or ends with a status other than 0. A failure of the source
            is reported first, because the sink then fails, too.
    """
    with _started(source, lock=lock) as first, _started(sink, lock=lock, stdin=first.stdout) as second:
        assert first.stdout is not None
        # The source must see when the sink has ended.
        first.stdout.close()
        sink_output = b"".join(second.communicate())
        assert first.stderr is not None
        source_output = first.stderr.read()
        first.wait()
    # Ended by SIGPIPE: the sink's failure is the cause.
    if first.returncode != -signal.SIGPIPE:
        _require_success(source, first.returncode, source_output)
    _require_success(sink, second.returncode, sink_output)


@contextmanager
def _started(
    command: Sequence[str | Path],
    *,
    lock: int | None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: IO[bytes] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program. At the end of the block wait for it; if an exception leaves the block, kill it."""
    process: subprocess.Popen[bytes] | None = None
    try:
        # An exception between the start and the assignment would leave the program running.
        with _deferred_signals():
            process = _popen(command, lock=lock, cwd=cwd, environment=environment, stdin=stdin)
        yield process
    except BaseException:
        if process is not None:
            process.kill()
        raise
    finally:
        if process is not None:
            with process:
                """Close its pipes and wait for it."""


def _popen(
    command: Sequence[str | Path],
    *,
    lock: int | None,
    cwd: Path | None,
    environment: Mapping[str, str] | None,
    stdin: IO[bytes] | None,
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            # Messages are compared and shown, so they must not be translated.
            env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=() if lock is None else (lock,),
        )
    except FileNotFoundError as error:
        raise ProgramError(f"'{command[0]}' is not installed") from error


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Delay the signals that end this process until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        # Python handles signals in the main thread only.
        yield
        return
    pending: list[int] = []

    def postpone(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    handlers = {number: signal.signal(number, postpone) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for pending_number in pending:
            signal.raise_signal(pending_number)


def _require_success(command: Sequence[str | Path], status: int, output: bytes) -> None:
    if status != 0:
        lines = output.decode(errors="replace").strip().splitlines()
        shown = "\n  ".join(lines[-SHOWN_LINES:]) or "(no output)"
        raise ProgramError(f"'{command[0]}' ended with status {status}:\n  {shown}")
