"""The sub-commands that read results: targets that ran nothing, and timings."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from bazel_process import command_parser

from dist_testing.core.bazel.timings import SCHEMA, Timings, read_timings
from dist_testing.core.ground.errors import ReportError
from dist_testing.report.facts import final_runs, ledger
from dist_testing.report.gather import gather
from dist_testing.report.model import Report
from dist_testing.report.words import printable


def read_results(paths: Sequence[Path]) -> Report:
    """Read results. A part that cannot be read is named on stderr, and left out.

    Args:
        paths: As for `gather`, relative to the user's folder; empty for bazel-testlogs of the workspace.
    """
    # `bazel run` starts programs in another folder.
    if directory := os.environ.get("BUILD_WORKING_DIRECTORY"):
        os.chdir(directory)
    paths = paths or [Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or ".", "bazel-testlogs")]
    report = gather(paths, is_brief=True)
    named = {str(path) for path in paths}
    for problem in report.problems:
        if problem.subject in named:
            raise ReportError(f"{problem.subject}: {problem.text}")
        sys.stderr.write(f"{problem.subject}: {problem.text}\n")
    if not report.runs and not report.not_run:
        raise ReportError(
            f"{', '.join(named)}: nothing was tested.\n"
            "The invocation found no test, or the folder is of another command.\n"
            "Run `bazel test` first, with --build_event_json_file=<file> to read the results of that run alone."
        )
    return report


def _idle_lines(report: Report) -> Iterator[str]:
    """Yield the list: first the targets that ran nothing, with the reasons of their cases."""
    told = ledger(report)
    idle = [line.target for line in told if line.kind == "ran nothing"]
    yield f"{len(idle)} of {len({run.target for run in report.runs})} targets ran nothing"
    for target in sorted(idle):
        reasons = Counter(line.reason for line in told if line.kind == "skipped" and line.target == target)
        yield f"{target}: {reasons.total()} case(s), none ran"
        yield from (f"    {count} x {reason}" for reason, count in reasons.most_common())
    for line in told:
        if line.kind in ("incompatible", "no results"):
            yield f"{line.target}: {line.reason}"


def ran_nothing(arguments: Sequence[str]) -> int:
    """List the targets that passed and ran nothing: `ci ran-nothing [RESULTS...]`.

    A target whose cases were all skipped is green, although it tests nothing. The list gives the skip reasons. With
    build events it also lists the targets that Bazel has skipped as incompatible; these are correct.

    Exit status: 0 if no target ran nothing, 1 if one did, 2 if the results cannot be read, also those of one target
    that has not failed.
    """
    parser = command_parser("ran-nothing", ran_nothing.__doc__)
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        help="build events of one run, folders or test.xml files (default: bazel-testlogs, which may hold older runs)",
    )
    given = parser.parse_args(arguments)
    try:
        report = read_results(given.results)
    except ReportError as error:
        sys.stderr.write(f"ran-nothing: {error}\n")
        return 2
    found = list(map(printable, _idle_lines(report)))
    print("\n".join(found))
    if any(not run.has_results and not run.is_bad for run in final_runs(report)):
        return 2
    return 0 if found[0].startswith("0 of") else 1


def measured(report: Report) -> dict[str, dict[str, float]]:
    """Return the median duration of every case that passed: target -> case -> seconds."""
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in report.runs:
        for case in run.cases:
            # A failure may have taken no time at all, or all the time until the timeout.
            if case.status == "passed" and case.duration_s:
                seconds[run.target][case.name].append(case.duration_s)
    return {
        target: {case: statistics.median(values) for case, values in cases.items()} for target, cases in seconds.items()
    }


def write_timings(path: Path, values: Timings) -> None:
    """Write the file, sorted, so that its diff in a review shows what became slower."""
    rounded = {
        target: {case: round(seconds, 3) for case, seconds in sorted(cases.items())}
        for target, cases in sorted(values.items())
    }
    text = json.dumps({"schema": SCHEMA, "targets": rounded}, indent=2, ensure_ascii=False)
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise ReportError(
            f"{path}: the timings cannot be written: {error}.\n"
            "The folder is missing or read-only, or the disk is full.\n"
            "Choose another path."
        ) from error


def timings(arguments: Sequence[str]) -> int:
    """Write how long cases take, for sharding: `ci timings --out=FILE [RESULTS...]`.

    The durations come from the test.xml files of finished runs: for each case, the median of the runs in which it
    passed. Timings in the file for other cases are kept; `--anew` drops them.

    Exit status: 0 if the file was written, else 1.
    """
    parser = command_parser("timings", timings.__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write or update")
    parser.add_argument("--anew", action="store_true", help="drop the timings that the file has")
    parser.add_argument("paths", nargs="*", type=Path, help="results (default: bazel-testlogs of this workspace)")
    given = parser.parse_args(arguments)
    try:
        new = measured(read_results(given.paths))
        old = {} if given.anew or not given.out.exists() else read_timings(given.out)
        # The old timings of cases that were not measured stay.
        merged = {target: {**old.get(target, {}), **new.get(target, {})} for target in {*old, *new}}
        write_timings(given.out, merged)
    except ReportError as error:
        sys.stderr.write(f"timings: {error}\n")
        return 1
    count = sum(len(cases) for cases in new.values())
    sys.stderr.write(f"timings: wrote {given.out}: {count} cases of {len(new)} targets measured\n")
    return 0
