"""Reads the expectation file of a backend: the cells that end otherwise than the contract asks for, and why.

docs/conformance.md shows one. It is strict both ways: a cell that ends otherwise than its row says fails, also if it
works. The file of a backend that was never run has no rows, and claims nothing about the backend: a run in which cells
do run fails until the file says what they did.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_testing.conformance.cell import Cell, Result, Status, matches
from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.torch_version import COMPARISONS, torch_version

SCHEMA = 1
# What torch.distributed promises, whatever the backend. Each cell names its row in the tables of this file, of which
# docs/evidence/conformance_contract.md is a copy.
CONTRACT = Path(__file__).with_name("contract.md").read_text(encoding="utf-8")
_FOUND = re.findall(r"^\| ([\d.]+) \| (.+?)(?: \(No cell of its own: (.+)\.\))? \|$", CONTRACT, re.MULTILINE)
# Number of a row to its text.
ROWS: dict[str, str] = {row: text for row, text, _ in _FOUND}
# Rows without a cell of their own: cells of other rows that show them, or why none can.
WITHOUT_CELL: dict[str, str] = {row: reason for row, _, reason in _FOUND if reason}
# Key of a row to its type. The status "not run" leaves out cells that do not end alike every time.
_REQUIRED = {"cells": tuple[str, ...], "status": Status, "reason": str, "link": str, "until": str}
_OPTIONAL = {"except": tuple[str, ...], "torch": str}
_CONDITION = re.compile(r"(>=|<=|==|<|>)(\d+)\.(\d+)")
# A reason has to say something.
_LEAST_REASON = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One row of an expectation file."""

    number: int  # its number in the file, from 1
    cells: tuple[str, ...]  # patterns of names of cells; "*" stands for any text
    excluded: tuple[str, ...]  # patterns of cells that the row does not cover
    status: Status  # how its cells end
    reason: str
    link: str  # a public thread such as "pytorch#192920", or "new: ..." with the place of a reproduction
    until: datetime.date  # when the owners of the file look at the row again
    is_active: bool  # whether it holds for the installed torch

    def covers(self, name: str) -> bool:
        """Return whether the row is about the cell of this name."""
        return matches(name, self.cells) and not matches(name, self.excluded)


@dataclass(frozen=True, slots=True)
class Expectations:
    """What is expected of one backend."""

    rows: tuple[Row, ...] = ()  # the first one that covers a cell counts
    source: str = "no expectation file"  # name of the file, for errors
    not_run: str = ""  # why no run on this backend has been made; "" if the rows are what runs have shown

    def row_of(self, cell: Cell) -> Row | None:
        """Return the row that covers a cell; None if the contract alone counts."""
        name = cell.name
        return next((row for row in self.rows if row.is_active and row.covers(name)), None)

    def status_of(self, cell: Cell) -> Status:
        """Return how a cell is expected to end."""
        row = self.row_of(cell)
        return cell.contract if row is None else row.status

    def problem(self, result: Result) -> str:
        """Return what is wrong with a result, in three parts; "" if it ended as expected, or was not run."""
        cell, row = result.cell, self.row_of(result.cell)
        if result.status in (Status.NOT_RUN, self.status_of(cell)):
            return ""
        seen = f"{cell.name}: {result.status.value}{f': {result.detail}' if result.detail else ''}."
        if row is None:
            return (
                f"{seen}\n"
                f"Row {cell.row} of the contract asks for {cell.contract.value}: {ROWS[cell.row]}\n"
                "Correct the backend, or declare the deviation in its expectation file with reason, link and date "
                "(docs/conformance.md)."
            )
        way_out = "Remove the row, or exclude the cell." if result.status is cell.contract else "Correct the row."
        return (
            f"{seen}\n"
            f"Row {row.number} of {self.source} expects {row.status.value}: {row.reason} ({row.link}).\n"
            f"The backend has changed, or the row covers too much. {way_out}"
        )

    def run_problem(self, lack: str | None) -> str:
        """Return the problem of a file that says that its backend was not run, in a run of it; "" if there is none.

        `lack` says why the cells of this run cannot run here; None if they can.
        """
        if not self.not_run or lack is not None:
            return ""
        return (
            f"{self.source} says that the backend was not run ({self.not_run}), but cells of this run did run.\n"
            "The file was written where the backend is not, so nothing in it is known about the cells.\n"
            "Take not_run out of the file, and declare each deviation that this run shows as a row."
        )

    def check_cells(self, cells: Sequence[Cell]) -> None:
        """Check that every row counts for one of all the kit's cells.

        Raises:
            UsageError: If a row covers none, or only cells that earlier rows cover.
        """
        used = {row.number for cell in cells if (row := self.row_of(cell)) is not None}
        for row in self.rows:
            if row.is_active and row.number not in used:
                raise UsageError(
                    f"{self.source}: row {row.number} covers no cell: {', '.join(row.cells)}.\n"
                    "There is no such cell, or an earlier row covers each of them.\n"
                    "Correct the patterns (--list shows all cells), or remove the row."
                )


def read_expectations(path: str | Path, backend: str, today: datetime.date | None = None) -> Expectations:
    """Read the expectation file of a backend, as of `today`, by default the date of today.

    Raises:
        UsageError: If the file cannot be read, is of another backend, or has a row without reason, link or date, past
            its date, or with an unknown key or status.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: the expectation file cannot be read: {error}.\n"
            "It is a JSON file with the keys schema, backend and rows.\n"
            "Correct it (docs/conformance.md shows one)."
        ) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or not isinstance(content.get("rows"), list):
        raise _bad(path, "it is no object with schema = 1 and a list rows")
    if content.get("backend") != backend:
        raise _bad(path, f"it is for backend {content.get('backend')!r}, and the run tests {backend!r}")
    if unknown := sorted(content.keys() - {"schema", "backend", "not_run", "rows"}):
        raise _bad(path, f"it has the unknown key {unknown[0]!r}")
    not_run = content.get("not_run", "")
    if "not_run" in content and (not isinstance(not_run, str) or len(not_run.strip()) < _LEAST_REASON):
        raise _bad(path, f"not_run = {not_run!r} says nothing")
    if not_run and content["rows"]:
        raise _bad(path, "it says that the backend was not run, and has rows, which only a run can show")
    rows = []
    for number, entry in enumerate(content["rows"], 1):
        try:
            rows.append(_row(number, entry, today or datetime.date.today()))
        except WrongValueError as error:
            raise _bad(path, f"row {number} {error}") from None
    return Expectations(tuple(rows), str(path), not_run)


def _row(number: int, entry: Any, today: datetime.date) -> Row:
    if not isinstance(entry, dict):
        raise WrongValueError(f"is {entry!r}; expected an object")
    keys: dict[str, Any] = {**_REQUIRED, **_OPTIONAL}
    if unknown := sorted(entry.keys() - keys):
        raise WrongValueError(f"has the unknown key {unknown[0]!r}; the keys are {', '.join(keys)}")
    if missing := [key for key in _REQUIRED if not entry.get(key)]:
        raise WrongValueError(f"has no {missing[0]}")
    values: dict[str, Any] = {"except": (), "torch": ""}
    for key, value in entry.items():
        try:
            values[key] = shape_of(keys[key]).read(value)
        except WrongValueError as error:
            raise WrongValueError(f"has {key} = {error}") from None
    if "" in (*values["cells"], *values["except"]):
        raise WrongValueError("has an empty pattern")
    reason = values["reason"].strip()
    if len(reason) < _LEAST_REASON or reason.upper().startswith("TODO"):
        raise WrongValueError(f"has reason = {reason!r}, which says nothing")
    try:
        until = datetime.date.fromisoformat(values["until"])
    except ValueError:
        raise WrongValueError(f"has until = {values['until']!r}; expected a date such as 2027-06-30") from None
    if until < today:
        raise WrongValueError(f"({', '.join(values['cells'])}) was to be looked at again by {until}")
    covers = (values["cells"], values["except"], values["status"])
    return Row(number, *covers, values["reason"], values["link"], until, _holds(values["torch"]))


def _holds(conditions: str) -> bool:
    """Return whether all conditions, such as ">=2.13,<2.15", hold for the installed torch."""
    major, minor = torch_version().split(".")[:2]
    holds = True
    for condition in filter(None, conditions.split(",")):
        if (found := _CONDITION.fullmatch(condition.strip())) is None:
            raise WrongValueError(f"has torch = {conditions!r}; expected conditions such as >=2.13,<2.15")
        holds &= COMPARISONS[found[1]]((int(major), int(minor)), (int(found[2]), int(found[3])))
    return holds


def _bad(path: str | Path, fault: str) -> UsageError:
    return UsageError(
        f"{path}: {fault}.\n"
        "An expectation file says of each deviation which cells, how they end, why, where to read about it, and until "
        "when the row counts.\n"
        "Correct the row (docs/conformance.md)."
    )
