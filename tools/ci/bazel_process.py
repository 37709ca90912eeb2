"""Runs Bazel in the foreground of a CI job, and asks whether its remote executor or cache answers before the job waits.

Bazel connects in the background. The first action that needs the answer waits for it, for `--remote_timeout` and all
`--remote_retries`. With the limits that uploads of torch need, that is an hour for an address that never answers.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from build_events import EventsError, read_events

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
# Limit for one call, and Bazel makes two: together they end within ten seconds. Seconds.
_ANSWER_S = 4
# There is no target, so Bazel analyses nothing and asks for no worker. It still writes the profile, and it sends the
# profile to the endpoint if there is one. For that it has to wait for the endpoint's answer.
_PROBE = (
    f"--remote_timeout={_ANSWER_S}",
    "--remote_retries=1",
    "--target_pattern_file=",
    "--generate_json_trace_profile=yes",
    "--experimental_build_event_upload_strategy=remote",
    # A service that lists builds must see only the builds that test something.
    "--bes_backend=",
)
# Bazel's message. The part in brackets is about its own buffers.
_REASON = re.compile(r"Failed to query remote execution capabilities: (.+?)(?:\. \[.*)?$", re.MULTILINE)
_ERROR = re.compile(r"ERROR: (.+)")


def number_up_to(most: int) -> Callable[[str], int]:
    """Return a reader of an option's value: a whole number from 1."""

    def read(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {most}")
        return int(text)

    return read


def split_targets(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split Bazel's arguments before a `--`. Our options go between: of several such ones Bazel takes the last."""
    end = list(given).index("--") if "--" in given else len(given)
    return list(given[:end]), list(given[end:])


def names_targets(given: Sequence[str]) -> bool:
    """Return whether Bazel's arguments say what to test, also by a file; Bazel refuses targets beside such a file."""
    before, targets = split_targets(given)
    named = [text for text in before if not text.startswith("-") or text.startswith("--target_pattern_file=")]
    return bool(named or targets[1:])


def command_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a sub-command's arguments; the description is its docstring."""
    return argparse.ArgumentParser(
        prog=f"ci {name}",
        description=inspect.cleandoc(description or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def bazel_and_workspace(program: str | None) -> tuple[str, Path]:
    """Return the Bazel to start and the workspace; by default its `bazelw` if it has one, else `bazel` on PATH."""
    workspace = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or Path.cwd())
    wrapper = workspace / "bazelw"
    return program or (str(wrapper) if wrapper.exists() else "bazel"), workspace


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


def ask_endpoint(bazel: Sequence[str], workspace: Path, folder: Path) -> tuple[int, str] | None:
    """Ask the remote executor or cache of a CI job for a first answer.

    Given are Bazel's program, its command and all flags, without targets. Return None if it answers or there is none,
    and if Bazel fails earlier; the job then shows why. Else return the exit status of the job and a message.

    Raises:
        ReportError: If Bazel cannot be started.
    """
    events, output = folder / "probe.json", folder / "probe.log"
    status = run_bazel([*bazel, *_PROBE, f"--build_event_json_file={events}"], workspace, output=output)
    if status == INTERRUPTED:
        return status, "interrupted while waiting for the executor's first answer"
    if status not in INFRASTRUCTURE:
        return None
    said = output.read_text(encoding="utf-8", errors="replace")
    address, reason = _address(events), _REASON.search(said)
    if not address and reason is None:
        return None
    reason = reason or _ERROR.search(said)
    return (
        REMOTE_FAILED,
        f"{address or 'an unknown address'}: the remote executor cannot be used: "
        f"{reason[1] if reason else f'Bazel ended with status {status}'}.\n"
        "It is down, or it is not a Remote Execution service, or a firewall or proxy in front of it does not answer.\n"
        "--remote_executor or --remote_cache names the address, among the flags or in a .bazelrc; "
        "`bazel run @dist_testing//tools/rbe -- up` starts the executor of --config=rbe_local.",
    )


def _address(events: Path) -> str:
    """Return the endpoint that results from all flags and files; empty if there is none or Bazel does not report it."""
    options: dict[str, str] = {}
    try:
        for event in read_events(events):
            line = event.get("structuredCommandLine", {})
            if line.get("commandLineLabel") == "canonical":
                for section in line.get("sections", []):
                    for option in section.get("optionList", {}).get("option", []):
                        # The last one counts.
                        options[option.get("optionName")] = option.get("optionValue", "")
    except EventsError:
        return ""
    return options.get("remote_executor") or options.get("remote_cache") or ""
