"""Run a test lane and sum it up: `bazel run @dist_testing//tools/ci -- [OPTION...] [BAZEL'S FLAGS] [TARGET...]`.

Runs `bazel test --config=ci` on the targets (default: `//...`), with the flags as they are given, which say where:
`--config=rbe_local`, or `--config=remote_gpu --remote_executor=grpcs://...`, or none for this machine. Values belong to
their flags by `=`. An invocation that ends for want of infrastructure, and not because of a test, is made again; what
has passed before is then in the cache.

Ends with a summary from the build events, and with Bazel's exit status. Where that is 0 although nothing can be said
for the tests (a target of which no case ran, results that are not here, events that break off), the status is 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from build_events import Invocation, read_invocation
from summary import Summary, summarise, summary_lines

from dist_testing.errors import ReportError

# Bazel's exit statuses for what no test and no target is to blame for (its ExitCode.java): an executor that cannot be
# reached or fails, outputs that it has lost, and build events that did not get through.
_REMOTE_FAILED = 34
_INFRASTRUCTURE = {
    _REMOTE_FAILED: "remote execution failed",
    38: "build events were not delivered",
    39: "remote outputs were lost",
}

# What Bazel calls a test that has a result of its own, and not a good one.
_TEST_FAILED = ("FAILED", "TIMEOUT", "FLAKY")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, sum up.

    Returns:
        0 only if every test that was to run has passed, and at least one case of each target was carried out.
    """
    options, given = _parser().parse_known_args(arguments)
    workspace = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or Path.cwd())
    bazel = options.bazel or (str(workspace / "bazelw") if (workspace / "bazelw").exists() else "bazel")
    with tempfile.TemporaryDirectory(prefix="dist-ci-") as folder:
        try:
            return _run(options, [bazel, "test", "--config=ci"], given, workspace, Path(folder))
        except ReportError as error:
            _say(str(error))
            return 1


def _run(options: argparse.Namespace, bazel: Sequence[str], given: Sequence[str], workspace: Path, folder: Path) -> int:
    events = Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), options.events) if options.events else None
    events = events or folder / "events.json"
    command = [*bazel, f"--build_event_json_file={events.absolute()}", *given]
    if not has_targets(given):
        command.append("//...")
    for number in range(1, options.attempts + 1):
        # Of an earlier attempt, or of an earlier run: nothing of it is a result of this one.
        events.unlink(missing_ok=True)
        status = _bazel(command, workspace)
        invocation = read_invocation(events)
        if not is_worth_another_attempt(status, invocation) or number == options.attempts:
            break
        _say(f"Bazel's exit status is {status}: {_INFRASTRUCTURE[status]}; attempt {number + 1} of {options.attempts}")
    summary = summarise(invocation)
    for line in summary_lines(summary, shard_rows=options.shard_rows):
        print(line)
    code, reason = verdict(status, summary)
    print(f"ci: {'green' if code == 0 else f'exit status {code}'}: {reason}")
    return code


def has_targets(given: Sequence[str]) -> bool:
    """Whether something among Bazel's arguments is no flag."""
    return any(argument and not argument.startswith("-") for argument in given) or "--" in given


def is_worth_another_attempt(status: int, invocation: Invocation) -> bool:
    """Whether an invocation failed for want of infrastructure alone, and that was there before.

    A test that has failed is not run again in the hope that it passes; an executor that has not answered once is down,
    or somewhere else, and Bazel itself has asked it several times.
    """
    failed = any(summary in _TEST_FAILED for summary in invocation.summaries.values())
    answered = status != _REMOTE_FAILED or any(attempt.status == "PASSED" for attempt in invocation.attempts)
    return status in _INFRASTRUCTURE and answered and not failed


def verdict(status: int, summary: Summary) -> tuple[int, str]:
    """Decide the exit status.

    Args:
        status: Bazel's.
        summary: Of its events.

    Returns:
        The status, and the reason in a few words.
    """
    if status == _REMOTE_FAILED:
        return status, "the remote executor failed, or is not where the flags say (Bazel's first ERROR is above)"
    if status:
        name = summary.exit_name or "no word of it in the build events"
        return status, _INFRASTRUCTURE.get(status) or f"Bazel says {name}"
    problems = []
    if not summary.is_complete or summary.exit_code != 0:
        problems.append("the build events break off")
    if summary.bad_targets:
        problems.append(f"{len(summary.bad_targets)} target(s) did not pass, though Bazel's exit status is 0")
    if summary.idle:
        problems.append(f"{len(summary.idle)} target(s) ran no case")
    if summary.unread:
        problems.append(f"the results of {len(summary.unread)} target(s) are not on this machine")
    return (1, "; ".join(problems)) if problems else (0, "every test that was to run has passed")


def _bazel(command: Sequence[str], workspace: Path) -> int:
    """Run Bazel in the foreground, and let it say the last word when somebody interrupts."""
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: FrameType | None) -> None:
        # The terminal's interrupt has reached Bazel already.
        if process is not None and number == signal.SIGTERM:
            process.terminate()

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        process = subprocess.Popen(command, cwd=workspace)
        status = process.wait()
    except OSError as error:
        raise ReportError(
            f"{command[0]} cannot be started: {error.strerror}.\n"
            "It is `bazelw` of the workspace, else `bazel` on PATH.\n"
            "Name it: --bazel=/path/to/bazel."
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    # As a shell has it.
    return status if status >= 0 else 128 - status


def _say(text: str) -> None:
    sys.stderr.write(f"ci: {text}\n")
    sys.stderr.flush()


def _attempts(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 10")
    return int(text)


def _rows(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ci", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--events", metavar="FILE", help="keep the build events there")
    parser.add_argument(
        "--attempts",
        type=_attempts,
        default=3,
        metavar="N",
        help="how often an invocation that infrastructure has failed is made in all (default: 3)",
    )
    parser.add_argument(
        "--shard-rows", type=_rows, default=10, metavar="N", help="sharded targets listed, worst balance first (10)"
    )
    parser.add_argument("--bazel", metavar="PROGRAM", help="default: ./bazelw, else bazel")
    return parser


if __name__ == "__main__":
    sys.exit(main())
