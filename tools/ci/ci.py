"""Run a test lane and sum it up: `bazel run @dist_testing//tools/ci -- [OPTION...] [BAZEL'S FLAGS] [TARGET...]`.

Runs `bazel test --config=ci` on the targets (default: `//...`), with the flags as they are given, which say where:
`--config=rbe_local`, or `--config=remote_gpu --remote_executor=grpcs://...`, or none for this machine. Values belong to
their flags by `=`. A remote executor that does not answer is an error within ten seconds. An invocation that ends for
want of infrastructure, and not because of a test, is made again; what has passed before is then in the cache.

Ends with a summary from the build events, and with Bazel's exit status. Where that is 0 although nothing can be said
for the tests (none ran, a target of which no case ran, results that are not here, events that break off), it is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bazel_process import INFRASTRUCTURE, REMOTE_FAILED, run_bazel
from build_events import EventsError, Invocation, read_invocation
from endpoint import ask_endpoint
from summary import Summary, summarise, summary_lines

from dist_testing.errors import ReportError

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
    end = list(given).index("--") if "--" in given else len(given)
    flags = [argument for argument in given[:end] if argument.startswith("-")]
    # Behind the flags, so that no other file counts.
    command = [*bazel, *given[:end], f"--build_event_json_file={events.absolute()}", *given[end:]]
    if flags == given[:end] and not given[end + 1 :]:
        command.append("//...")
    _say("asking the remote executor, if the flags name one, for an answer")
    for number in range(1, options.attempts + 1):
        if refusal := ask_endpoint([*bazel, *flags], workspace, folder):
            _say(refusal.text)
            print(f"ci: exit status {refusal.status}: attempt {number} has not begun")
            return refusal.status
        # Of an earlier attempt, or of an earlier run: nothing of it is a result of this one.
        events.unlink(missing_ok=True)
        status = run_bazel(command, workspace)
        try:
            invocation = read_invocation(events)
        except EventsError as error:
            _say(str(error))
            print(f"ci: exit status {status or 1}: Bazel ended with {status} and without build events, so no page")
            return status or 1
        if not is_worth_another_attempt(status, invocation) or number == options.attempts:
            break
        _say(f"Bazel's exit status is {status}: {INFRASTRUCTURE[status]}; attempt {number + 1} of {options.attempts}")
    summary = summarise(invocation)
    for line in summary_lines(summary, shard_rows=options.shard_rows):
        print(line)
    code, reason = verdict(status, summary)
    print(f"ci: {'green' if code == 0 else f'exit status {code}'}: {reason}")
    return code


def is_worth_another_attempt(status: int, invocation: Invocation) -> bool:
    """Whether an invocation failed for want of infrastructure alone, and that was there before.

    A test that has failed is not run again in the hope that it passes, and a target that does not build will not
    either. An executor that has answered and done nothing at all does not want what it was given.
    """
    failed = any(summary in _TEST_FAILED for summary in invocation.summaries.values())
    done = any(attempt.status == "PASSED" and attempt.cached != "local" for attempt in invocation.attempts)
    return status in INFRASTRUCTURE and (done or status != REMOTE_FAILED) and not failed and not invocation.faulty


def verdict(status: int, summary: Summary) -> tuple[int, str]:
    """Decide the exit status.

    Args:
        status: Bazel's.
        summary: Of its events.

    Returns:
        The status, and the reason in a few words.
    """
    if status == REMOTE_FAILED:
        return status, "the remote executor failed (Bazel's first ERROR is above)"
    broken_off = "the build events break off"
    if status:
        said = f"Bazel says {summary.exit_name}" if summary.exit_name else "Bazel's own words are above"
        reason = INFRASTRUCTURE.get(status) or said
        return status, reason if summary.is_complete else f"{reason}; {broken_off}"
    problems = []
    if not summary.origins:
        problems.append("no test ran")
    if not summary.is_complete or summary.exit_code != 0:
        problems.append(broken_off)
    if summary.bad_targets:
        problems.append(f"{len(summary.bad_targets)} target(s) did not pass, though Bazel's exit status is 0")
    if summary.idle:
        problems.append(f"{len(summary.idle)} target(s) ran no case")
    if summary.unread:
        problems.append(f"the results of {len(summary.unread)} target(s) cannot be read on this machine")
    return (1, "; ".join(problems)) if problems else (0, "every test that was to run has passed")


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
