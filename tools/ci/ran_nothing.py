"""List the targets that passed and ran nothing: `ci ran-nothing [RESULTS...]`.

A target whose cases were all skipped is green, although it tests nothing. The list gives the skip reasons. With build
events it also lists the targets that Bazel has skipped as incompatible; these are correct.

Exit status: 0 if no target ran nothing, 1 if one did, 2 if the results cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from results import read_results

from dist_testing.core.ground.errors import ReportError
from dist_testing.report.facts import ledger
from dist_testing.report.model import Report


def lines(report: Report) -> Iterator[str]:
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


def main(arguments: Sequence[str]) -> int:
    """Print the list, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="ci ran-nothing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        help="build events of one run, folders or test.xml files (default: bazel-testlogs, which may hold older runs)",
    )
    given = parser.parse_args(arguments)
    try:
        found = list(lines(read_results(given.results)))
    except ReportError as error:
        sys.stderr.write(f"ran-nothing: {error}\n")
        return 2
    print("\n".join(found))
    return 0 if found[0].startswith("0 of") else 1
