"""What recorded runs say about rows: which cases need one, and which need theirs no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from dist_testing.core.ground.record import CaseRecord
from dist_testing.quarantine.conditions import Conditions, Place
from dist_testing.quarantine.rows import Row, RowFinder
from dist_testing.quarantine.text import row_text
from dist_testing.report.facts import ended
from dist_testing.report.flakes import Flake, measured, votes
from dist_testing.report.model import Report
from dist_testing.report.words import one_line, percent


def proposals(report: Report, rows: Sequence[Row], expires: date, *, same_inputs: bool) -> Iterator[str]:
    """Yield a row for each case that has both passed and failed with equal inputs, and that no row names yet.

    `same_inputs` is as in `report.flakes.votes`.
    """
    nodeids = _nodeids(report)
    finder = RowFinder(rows)
    proposed = set()
    for flake in measured(votes(report, same_inputs=same_inputs)):
        nodeid = nodeids.get(flake.case)
        if flake.label != "flaky" or (nodeid is not None and any(finder.find(nodeid))):
            continue
        statistics = _statistics(flake)
        if nodeid is None:
            name = one_line(flake.case)
            yield f"# {name}: {statistics}; no such test file is here: run this in the root of the project"
            continue
        # A test without ranks has neither.
        place = {"backend": flake.backend, "world_size": flake.world_size} if flake.world_size else {}
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
        for case in run.cases:
            nodeid = nodeids.get(case.name, "")
            status = ended(case)
            place = Place(run.backend or None, case.world_size or None)
            for row in dict.fromkeys(row for _, row in finder.find(nodeid)):
                if status != "skipped" and _is_for(row.conditions, place):
                    in_a_row[row, nodeid] = in_a_row[row, nodeid] + 1 if status == "passed" else 0
    for (row, nodeid), count in in_a_row.items():
        if count >= passes:
            yield row, nodeid, count


def _is_for(conditions: Conditions, place: Place) -> bool:
    """Return whether a row is for a place, as far as records tell it."""
    told = ((conditions.backend, place.backend), (conditions.world_size, place.world_size))
    return all(wanted is None or found is None or wanted == found for wanted, found in told)


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
        path = Path(*parts[:end]).with_suffix(".py")
        if path.is_file():
            return "::".join([str(path), *parts[end:]]) + bracket + parameters
    return ""
