"""Looks after a quarantine file: `python -m dist_testing.quarantine check|propose|prune`.

RESULTS are what `python -m dist_testing.report` reads: event streams, test.xml files, build events, folders with them.

Exit status: 0 if the command has done its work; 1 if `check` has found something; 2 if a file cannot be read or
written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path

from dist_testing.core.ground.errors import ReportError, UsageError
from dist_testing.core.ground.record import CaseRecord
from dist_testing.core.ground.spec import number_in
from dist_testing.quarantine.rows import (
    SCHEMA,
    Row,
    RowFinder,
    is_pattern,
    is_version_in,
    read_rows,
    read_text,
    row_text,
    rows_in,
    without_rows,
)
from dist_testing.report.facts import ended
from dist_testing.report.files import write_text
from dist_testing.report.flakes import WHOLE, Flake, measured, votes
from dist_testing.report.gather import gather
from dist_testing.report.model import Report
from dist_testing.report.pipe import into_pipe
from dist_testing.report.words import one_line, percent

# Days until a proposed row expires.
_DAYS = 30
# After so many passes without a failure, a rate of 10 % is unlikely (12 %).
_PASSES = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return into_pipe(lambda: int(options.run(options)))
    except (ReportError, UsageError) as error:
        sys.stderr.write(f"quarantine: {error}\n")
        return 2


def _check(options: argparse.Namespace) -> int:
    rows = read_rows(options.file)
    complaints = list(_complaints(rows))
    if options.results:
        for row, nodeid, count in healed(_report(options.results), rows, options.passes):
            complaints.append(f"{row.name}: {nodeid} has passed its last {count} recorded runs")
    for complaint in complaints:
        print(complaint)
    if not complaints:
        print(f"{options.file}: {len(rows)} rows, none has expired")
    return 1 if complaints else 0


def _complaints(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.expires < date.today():
            yield f"{row.name} has expired on {row.expires}: {row.reason}; owner {row.owner}, {row.link}"
        for case in row.cases:
            file = case.partition("::")[0]
            if not is_pattern(file) and not Path(file).exists():
                yield f"{row.name}: there is no file {file} here; owner {row.owner}, {row.link}"


def _propose(options: argparse.Namespace) -> int:
    rows = read_rows(options.file) if options.file else ()
    expires = date.today() + timedelta(days=options.days)
    found = list(proposals(_report(options.results), rows, expires, same_inputs=options.same_inputs))
    if not options.file:
        print(f"schema = {SCHEMA}\n")
    print("\n\n".join(found) or "# No case has both passed and failed with equal inputs.")
    return 0


def _prune(options: argparse.Namespace) -> int:
    text = read_text(options.file)
    expired = [row for row in rows_in(text, options.file) if row.expires < date.today()]
    shorter = without_rows(text, options.file, [row.number for row in expired])
    if expired:
        write_text(options.file, shorter)
    for row in expired:
        print(f"removed: {row.name}, expired on {row.expires}: {row.reason}; owner {row.owner}, {row.link}")
    if not expired:
        print(f"{options.file}: no row has expired")
    return 0


def _report(paths: Sequence[Path]) -> Report:
    """Read results. Say what cannot be read or is incomplete, and refuse results without a case."""
    report = gather(paths, is_brief=True)
    told = "\n".join(f"{problem.subject}: {problem.text}" for problem in report.problems)
    if not any(run.cases for run in report.runs):
        raise ReportError(told or f"{paths[0]}: there is no case in it.\nThe run has ended early.\nName other results.")
    if told:
        sys.stderr.write(f"{told}\n")
    return report


def proposals(report: Report, rows: Sequence[Row], expires: date, *, same_inputs: bool) -> Iterator[str]:
    """Yield a row for each case that has both passed and failed with equal inputs, and that no row names yet.

    `same_inputs` is as in `report.flakes.votes`.
    """
    nodeids = _nodeids(report)
    finder = RowFinder(rows)
    of_threads = {case.name for run in report.runs for case in run.cases if case.isolation == "thread"}
    proposed = set()
    for flake in measured(votes(report, same_inputs=same_inputs)):
        nodeid = nodeids.get(flake.case)
        if flake.label != "flaky" or (nodeid is not None and any(finder.find(nodeid))):
            continue
        statistics = _statistics(flake)
        if nodeid is None:
            why = "no such test file is here: run this in the root of the project"
            if flake.case == WHOLE:
                why = "no case says why, and a row is for cases"
            yield f"# {one_line(flake.target, flake.case)}: {statistics}; {why}"
            continue
        # Threads are not of the run's backend.
        backend = "" if flake.case in of_threads else flake.backend
        # A test without ranks has neither.
        place = {"backend": backend, "world_size": flake.world_size} if flake.world_size else {}
        if (key := (nodeid, *place.values())) in proposed:
            # Another target has the same case.
            continue
        proposed.add(key)
        yield row_text(
            one_line(f"{statistics}: {flake.words}"),
            cases=[nodeid],
            mode="run",
            reason=f"flaky: {statistics}",
            # The reader refuses these until a person writes them.
            link="",
            owner="",
            expires=expires,
            **{key: value for key, value in place.items() if value},
        )


def _statistics(flake: Flake) -> str:
    low, high = (percent(rate).replace("\N{NO-BREAK SPACE}", " ") for rate in flake.interval)
    return f"{flake.failures} of {flake.runs} runs failed, {low} to {high} (95 %)"


def healed(report: Report, rows: Sequence[Row], passes: int) -> Iterator[tuple[Row, str, int]]:
    """Yield each row and case of it that has passed its last `passes` recorded runs, and how often in a row it has."""
    nodeids = _nodeids(report)
    finder = RowFinder(rows)
    in_a_row: dict[tuple[Row, str], int] = defaultdict(int)
    begun = [report.invocations[run.invocation].began_wall_s or run.began_wall_s or 0.0 for run in report.runs]
    for _, run in sorted(zip(begun, report.runs, strict=True), key=lambda one: one[0]):
        # The result in a cache is that of an earlier run.
        for case in () if run.cached else run.cases:
            nodeid = nodeids.get(case.name, "")
            status = ended(case)
            for row in dict.fromkeys(row for _, row in finder.find(nodeid)):
                told = ((row.conditions.backend, run.backend), (row.conditions.world_size, case.world_size))
                # Some records do not tell them.
                is_for_it = all(wanted is None or not found or wanted == found for wanted, found in told)
                if (bounds := row.conditions.torch) and (version := run.versions.get("torch")):
                    is_for_it &= is_version_in(version, bounds)
                if status != "skipped" and is_for_it:
                    in_a_row[row, nodeid] = in_a_row[row, nodeid] + 1 if status == "passed" else 0
    for (row, nodeid), count in in_a_row.items():
        if count >= passes:
            yield row, nodeid, count


def _nodeids(report: Report) -> dict[str, str]:
    """Return the node id of each case by its name. XML has only names: then the files here decide."""
    found = {}
    for run in report.runs:
        for case in run.cases:
            if case.name not in found and (nodeid := case.nodeid or _nodeid_of(case)):
                found[case.name] = nodeid
    return found


def _nodeid_of(case: CaseRecord) -> str:
    head, bracket, parameters = case.name.partition("[")
    parts = head.split(".")
    for end in range(len(parts) - 1, 0, -1):
        path = f"{'/'.join(parts[:end])}.py"
        # Not `Path.is_file`: any program may have written the name, which may be too long for a path.
        if os.path.isfile(path):
            return "::".join([path, *parts[end:]]) + bracket + parameters
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dist_testing.quarantine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="read the file, and list what should be removed from it")
    check.set_defaults(run=_check)
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument("--results", nargs="+", default=[], type=Path, metavar="RESULTS", help="recorded runs")
    check.add_argument(
        "--passes",
        type=_count,
        default=_PASSES,
        metavar="N",
        help=f"with --results: list cases that have passed their last N recorded runs (default: {_PASSES})",
    )
    propose = commands.add_parser("propose", help="print rows for cases that recorded runs show to be flaky")
    propose.set_defaults(run=_propose)
    propose.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="recorded runs")
    propose.add_argument("--file", type=Path, metavar="FILE", help="leave out cases that this file names")
    propose.add_argument(
        "--days", type=_count, default=_DAYS, metavar="N", help=f"days until the rows expire (default: {_DAYS})"
    )
    propose.add_argument("--same-inputs", action="store_true", help="all results are of the same sources")
    prune = commands.add_parser("prune", help="remove rows that have expired, and keep all other text")
    prune.set_defaults(run=_prune)
    prune.add_argument("file", type=Path, metavar="FILE")
    return parser


def _count(text: str) -> int:
    # Argparse shows the text of this error. 10,000 days are a date that exists.
    if not 1 <= (number := number_in(text) or 0) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number from 1 to 10000")
    return number


if __name__ == "__main__":
    sys.exit(main())
