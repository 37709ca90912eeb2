"""Write how long cases take, for sharding: `ci timings --out=FILE [RESULTS...]`.

The durations come from the test.xml files of finished runs: for each case, the median of the runs in which it passed.
Timings in the file for other cases are kept; `--anew` drops them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from results import read_results

from dist_testing.core.bazel.timings import SCHEMA, Timings, read_timings
from dist_testing.core.ground.errors import ReportError
from dist_testing.report.model import Report


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


def merged(old: Timings, new: Mapping[str, Mapping[str, float]]) -> Timings:
    """Return the new timings, and the old ones of cases that were not measured."""
    return {target: {**old.get(target, {}), **new.get(target, {})} for target in {*old, *new}}


def write_timings(path: Path, timings: Timings) -> None:
    """Write the file, sorted, so that its diff in a review shows what became slower."""
    rounded = {
        target: {case: round(seconds, 3) for case, seconds in sorted(cases.items())}
        for target, cases in sorted(timings.items())
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


def main(arguments: Sequence[str]) -> int:
    """Write the file; return 0 if it was written, else 1."""
    parser = argparse.ArgumentParser(
        prog="ci timings", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write or update")
    parser.add_argument("--anew", action="store_true", help="drop the timings that the file has")
    parser.add_argument("paths", nargs="*", type=Path, help="results (default: bazel-testlogs of this workspace)")
    given = parser.parse_args(arguments)
    try:
        new = measured(read_results(given.paths))
        old = {} if given.anew or not given.out.exists() else read_timings(given.out)
        write_timings(given.out, merged(old, new))
    except ReportError as error:
        sys.stderr.write(f"timings: {error}\n")
        return 1
    count = sum(len(cases) for cases in new.values())
    sys.stderr.write(f"timings: wrote {given.out}: {count} cases of {len(new)} targets measured\n")
    return 0
