"""Measure how often tests fail without a change: `ci flakes --runs=200 //x:y`.

Runs the targets again and again, until for each case a claim can be made: that it is flaky, or that it fails less often
than `--rate` (by Wilson's interval of 95 %; 381 clean runs for 1 %). At most `--runs` runs are made. Other flags go to
Bazel.

Exit status: 0 if no case failed, 1 if one did, 2 for wrong usage; else Bazel's own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bazel_process import (
    bazel_and_workspace,
    command_parser,
    names_targets,
    number_up_to,
    run_bazel,
    split_targets,
)

from dist_testing.core.ground.errors import ReportError
from dist_testing.report.flakes import Flake, Vote, flake_lines, measured, votes
from dist_testing.report.gather import gather

# Bazel's exit status if tests have failed.
_TESTS_FAILED = 3


def main(arguments: Sequence[str]) -> int:
    """Run the targets and print the rates; return the exit status."""
    options, given = _parser().parse_known_args(arguments)
    if not names_targets(given):
        sys.stderr.write(
            "flakes: no target is named.\n"
            "The command runs targets again and again, so it needs to know which.\n"
            "Name some: bazel run @dist_testing//tools/ci -- flakes --runs=200 //x:y\n"
        )
        return 2
    bazel, workspace = bazel_and_workspace(options.bazel)
    try:
        with tempfile.TemporaryDirectory(prefix="dist-flakes-") as folder:
            return _run(options, bazel, given, workspace, Path(folder))
    except ReportError as error:
        sys.stderr.write(f"flakes: {error}\n")
        return 2


def _run(options: argparse.Namespace, bazel: str, given: Sequence[str], workspace: Path, folder: Path) -> int:
    found: list[Vote] = []
    rates: Sequence[Flake] = []
    done = 0
    events = folder / "events.json"
    flags, targets = split_targets(given)
    while done < options.runs:
        count = min(options.batch, options.runs - done)
        ours = ["--keep_going", "--flaky_test_attempts=1", "--cache_test_results=no"]
        ours += ["--noruns_per_test_detects_flakes", f"--runs_per_test={count}", f"--build_event_json_file={events}"]
        events.unlink(missing_ok=True)
        status = run_bazel([bazel, "test", *flags, *ours, *targets], workspace)
        if status not in (0, _TESTS_FAILED):
            sys.stderr.write(f"flakes: Bazel's exit status is {status}: its messages are above\n")
            return status
        report = gather([events])
        for problem in report.problems:
            sys.stderr.write(f"flakes: {problem.subject}: {problem.text}\n")
        found += votes(report, same_inputs=True)
        done += count
        rates = measured(found)
        # More runs tell more about a case without a failure and without a claim.
        if rates and not any(one.label == "no failure" and one.more_runs(options.rate) > 0 for one in rates):
            break
    return _tell(rates, done, options.rate)


def _tell(rates: Sequence[Flake], done: int, rate: float) -> int:
    for line in flake_lines(rates, rate):
        print(line)
    failed = sum(flake.label != "no failure" for flake in rates)
    print(f"flakes: {done} runs, {len(rates)} cases, {failed} failed at least once")
    if not rates:
        sys.stderr.write(
            "flakes: no case has run.\n"
            "The targets have no cases on this machine, or their results cannot be read.\n"
            "Run `bazel test` on them once, and look at its log.\n"
        )
        return 2
    return 1 if failed else 0


def _rate(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate between 0 and 1, such as 0.01 or 1%")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("flakes", __doc__)
    parser.add_argument(
        "--runs", type=number_up_to(1_000_000), default=400, metavar="N", help="runs at most (default: 400)"
    )
    parser.add_argument("--rate", type=_rate, default=0.01, metavar="R", help="the rate to claim (default: 1%%)")
    parser.add_argument(
        "--batch",
        type=number_up_to(1_000_000),
        default=100,
        metavar="N",
        help="runs of one invocation of Bazel (default: 100)",
    )
    parser.add_argument("--bazel", metavar="PROGRAM", help="default: ./bazelw, else bazel")
    return parser
