"""Runs Bazel in the foreground of a CI job."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from dist_testing.core.ground.errors import ReportError

# Bazel's exit statuses (its ExitCode.java).
INTERRUPTED = 8
REMOTE_FAILED = 34
# Exit statuses for which no test and no target is to blame: an executor cannot be reached or fails, it has lost
# outputs, or build events were not delivered.
INFRASTRUCTURE = {
    REMOTE_FAILED: "remote execution failed",
    38: "build events were not delivered",
    39: "remote outputs were lost",
}


def number_up_to(most: int) -> Callable[[str], int]:
    """Return a reader of an option's value: a whole number from 1."""

    def read(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {most}")
        return int(text)

    return read


def user_workspace() -> Path:
    """Return the workspace of `bazel run`, else the current folder."""
    return Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or Path.cwd())


def usual_bazel(workspace: Path) -> str:
    """Return the program to start: `bazelw` of the workspace if it has one, else `bazel` on PATH."""
    wrapper = workspace / "bazelw"
    return str(wrapper) if wrapper.exists() else "bazel"


def run_bazel(command: Sequence[str], workspace: Path, *, output: Path | None = None) -> int:
    """Run Bazel; its output goes into the file `output`, or to that of this program.

    An interrupt ends Bazel first, so that its messages come last. Return Bazel's exit status in a shell's form;
    INTERRUPTED if this program was interrupted.
    """
    process: subprocess.Popen[bytes] | None = None
    is_interrupted = False

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        # An interrupt from the terminal has reached Bazel already.
        if process is not None and number == signal.SIGTERM:
            process.terminate()

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if output is None:
            process = subprocess.Popen(command, cwd=workspace)
        else:
            with output.open("wb") as file:
                process = subprocess.Popen(command, cwd=workspace, stdout=file, stderr=subprocess.STDOUT)
        if is_interrupted:
            # The interrupt came before there was a Bazel to pass it on to.
            process.terminate()
        status = process.wait()
    except OSError as error:
        raise ReportError(
            f"{command[0]} cannot be started: {error.strerror}.\n"
            "The program is `bazelw` of the workspace, else `bazel` on PATH.\n"
            "Name another one: --bazel=/path/to/bazel."
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if is_interrupted:
        return INTERRUPTED
    return status if status >= 0 else 128 - status
