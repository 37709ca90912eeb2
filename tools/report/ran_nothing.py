"""List the targets that passed and ran nothing: `bazel run @dist_testing//tools/report:ran_nothing [-- RESULTS...]`.

A target whose cases were all skipped is green, although it tests nothing. The list gives the skip reasons. With build
events it also lists the targets that Bazel has skipped as incompatible; these are correct.

Exit status: 0 if no target ran nothing, 1 if one did, 2 if the results cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testlogs import Results, go_where_the_user_is, read_results

from dist_testing.core.ground.errors import ReportError


@dataclass(frozen=True, slots=True)
class Idle:
    """A target that ran nothing.

    Attributes:
        target: Its label.
        reasons: Skip reason -> number of cases; empty if the target had no cases.
    """

    target: str
    reasons: Counter[str]


def idle_targets(results: Results) -> list[Idle]:
    """Return the targets of which no run executed a case, sorted by label."""
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    busy = set()
    for run in results.runs:
        reasons[run.target].update(case.message for case in run.cases if not case.has_run)
        if any(case.has_run for case in run.cases):
            busy.add(run.target)
    return [Idle(target, reasons[target]) for target in sorted(reasons) if target not in busy]


def _lines(results: Results, idle: Sequence[Idle]) -> Iterator[str]:
    targets = {run.target for run in results.runs}
    yield f"{len(idle)} of {len(targets)} targets ran nothing"
    for one in idle:
        yield f"{one.target}: {sum(one.reasons.values())} case(s), none ran"
        for reason, count in one.reasons.most_common():
            yield f"    {count} x {reason or 'skipped without a reason'}"
    for target in results.incompatible:
        yield f"{target}: incompatible with the platform, so Bazel did not run it"
    for target in results.unread:
        yield f"{target}: its test.xml is not on this machine (--remote_download_outputs=all fetches it)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        help="build events of one run, folders or test.xml files (default: bazel-testlogs, which may hold older runs)",
    )
    given = parser.parse_args(arguments)
    try:
        usual = go_where_the_user_is()
        results = read_results(given.results or [usual])
    except ReportError as error:
        sys.stderr.write(f"ran_nothing: {error}\n")
        return 2
    idle = idle_targets(results)
    for line in _lines(results, idle):
        print(line)
    return 1 if idle else 0


if __name__ == "__main__":
    sys.exit(main())
