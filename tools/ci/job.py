"""Run the tests of a CI job: `ci test [OPTION...] [BAZEL FLAGS] [TARGET...]`.

Runs `bazel test --config=ci` on the targets (default: `//...`) and passes the flags on unchanged. The flags choose the
place: `--config=rbe_local`, or `--config=remote_gpu --remote_executor=grpcs://...`, or none for this machine. Join a
flag and its value by `=`. A remote executor that does not answer is an error within ten seconds. If the infrastructure
fails and no test does, the invocation is repeated; tests that have passed before then come from the cache.

Ends with a summary of the build events, a page of them (docs/reports.md), and Bazel's exit status. If Bazel's status is
0 although the result of a test is unknown (no test ran, no case of a target ran, results are not on this machine, the
build events are incomplete), the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bazel_process import (
    INFRASTRUCTURE,
    REMOTE_FAILED,
    ask_endpoint,
    bazel_and_workspace,
    command_parser,
    names_targets,
    number_up_to,
    run_bazel,
    split_targets,
)
from build_events import EventsError, Invocation, read_invocation
from summary import Summary, summarise, summary_lines

from dist_testing.core.ground.error_text import format_error
from dist_testing.core.ground.errors import ReportError
from dist_testing.report.files import write_text
from dist_testing.report.gather import gather
from dist_testing.report.model import Report
from dist_testing.report.page import page
from dist_testing.report.words import printable, size

# Bazel's names for a test that has a result of its own and did not simply pass.
_TEST_FAILED = ("FAILED", "TIMEOUT", "FLAKY")


def main(arguments: Sequence[str]) -> int:
    """Run the tests and print the summary; return 0 only if every selected test has passed and ran a case."""
    options, given = _parser().parse_known_args(arguments)
    bazel, workspace = bazel_and_workspace(options.bazel)
    with tempfile.TemporaryDirectory(prefix="dist-ci-") as folder:
        try:
            return _run(options, [bazel, "test", "--config=ci"], given, workspace, Path(folder))
        except ReportError as error:
            _say(str(error))
            return 1


def _run(options: argparse.Namespace, bazel: Sequence[str], given: Sequence[str], workspace: Path, folder: Path) -> int:
    events = Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), options.events) if options.events else None
    events = events or folder / "events.json"
    before, targets = split_targets(given)
    flags = [argument for argument in before if argument.startswith("-")]
    command = [*bazel, *before, f"--build_event_json_file={events.absolute()}", *targets]
    if not names_targets(given):
        command.append("//...")
    _say("asking the remote executor, if the flags name one")
    for number in range(1, options.attempts + 1):
        try:
            # Events of an earlier attempt or run are no results of this one.
            events.unlink(missing_ok=True)
        except OSError as error:
            raise ReportError(
                f"{events}: no place for build events: {error.strerror}.\n"
                "Bazel writes them into one file.\n"
                "Name another one: --events=FILE."
            ) from error
        if refusal := ask_endpoint([*bazel, *flags], workspace, folder):
            status, text = refusal
            _say(text)
            print(f"ci: exit status {status}: attempt {number} was not started")
            return status
        status = run_bazel(command, workspace)
        try:
            invocation = read_invocation(events)
        except EventsError as error:
            _say(str(error))
            print(
                f"ci: exit status {status or 1}: Bazel ended with {status} and without build events, "
                "so there is no summary"
            )
            return status or 1
        if not _is_worth_another_attempt(status, invocation) or number == options.attempts:
            break
        _say(f"Bazel's exit status is {status}: {INFRASTRUCTURE[status]}; attempt {number + 1} of {options.attempts}")
    report = gather([events], is_brief=True)
    summary = summarise(invocation, report)
    for line in summary_lines(summary):
        print(printable(line))
    if options.page:
        _write_page(report, Path(os.environ.get("BUILD_WORKING_DIRECTORY", workspace), options.page))
    code, reason = verdict(status, summary)
    print(f"ci: {'green' if code == 0 else f'exit status {code}'}: {reason}")
    return code


def _write_page(report: Report, place: Path) -> None:
    """Write the page of the job, and say where it is. The exit status does not depend on it."""
    try:
        written = write_text(place, page(report, title="CI job", made_wall_s=time.time()))
    except ReportError as error:
        _say(f"there is no page: {error}")
    except Exception as error:
        # The tests have their results, so an error in a picture of them must not hide these.
        _say(f"there is no page: {format_error(error)}")
    else:
        print(f"page: {place.absolute()} ({size(written)})")


def _is_worth_another_attempt(status: int, invocation: Invocation) -> bool:
    """Return whether only infrastructure failed, and it worked before.

    A failed test is not repeated in the hope that it passes, and neither is a target that does not build. An executor
    that answers and completes no action refuses what it gets, so another attempt would not help.
    """
    failed = any(summary in _TEST_FAILED for summary in invocation.summaries.values())
    done = any(attempt.status == "PASSED" and attempt.cached != "local" for attempt in invocation.attempts)
    return status in INFRASTRUCTURE and (done or status != REMOTE_FAILED) and not failed and not invocation.faulty


def verdict(status: int, summary: Summary) -> tuple[int, str]:
    """Decide the exit status of the CI job from that of Bazel; return it with the reason in a few words."""
    if status == REMOTE_FAILED:
        return status, "the remote executor failed (Bazel's first ERROR is above)"
    broken_off = "the build events are incomplete"
    invocation = summary.invocation
    if status:
        said = f"Bazel says {invocation.exit_name}" if invocation.exit_name else "Bazel's messages are above"
        reason = INFRASTRUCTURE.get(status) or said
        return status, reason if invocation.is_complete else f"{reason}; {broken_off}"
    problems = []
    if not summary.report.runs:
        problems.append("no test ran")
    if not invocation.is_complete or invocation.exit_code != 0:
        problems.append(broken_off)
    if summary.bad_targets:
        problems.append(f"{len(summary.bad_targets)} target(s) did not pass, although Bazel's exit status is 0")
    if summary.idle:
        problems.append(f"{len(summary.idle)} target(s) ran no case")
    if summary.unread:
        problems.append(f"the results of {len(summary.unread)} target(s) cannot be read on this machine")
    return (1, "; ".join(problems)) if problems else (0, "every selected test has passed")


def _say(text: str) -> None:
    print(f"ci: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("test", __doc__)
    parser.add_argument("--events", metavar="FILE", help="write the build events to this file and keep it")
    parser.add_argument(
        "--attempts",
        type=number_up_to(10),
        default=3,
        metavar="N",
        help="attempts in all, where infrastructure fails (default: 3)",
    )
    parser.add_argument(
        "--page",
        default="bazel-report.html",
        metavar="FILE",
        help="the page of the results; empty for none (%(default)s)",
    )
    parser.add_argument("--bazel", metavar="PROGRAM", help="default: ./bazelw, else bazel")
    return parser
