"""Expectation files: strict both ways, and bad ones refused with three parts."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from dist_testing.conformance.catalogue import all_cells
from dist_testing.conformance.cell import Cell, Result, Status
from dist_testing.conformance.expectations import Expectations, read_expectations
from dist_testing.conformance.kit_session import CellSession
from dist_testing.core.ground.backends import backend_named, backends
from dist_testing.core.ground.errors import UsageError

CELL = next(cell for cell in all_cells() if cell.operation == "broadcast" and cell.layout == "strided")
ROW = {
    "cells": ["broadcast/*/strided/*"],
    "status": "wrong",
    "reason": "ignores the strides of the tensor",
    "link": "pytorch#192920",
    "until": "2999-01-01",
}


def read(folder: Path, *rows: Any, **more: Any) -> Expectations:
    """Write and read a file with these rows."""
    file = folder / "conformance.json"
    file.write_text(json.dumps({"schema": 1, "backend": "mine", "rows": list(rows), **more}), encoding="utf-8")
    return read_expectations(file, "mine")


# Bitwise operations on floats have no value, so the contract asks for a refusal.
UNDEFINED = next(cell for cell in all_cells() if cell.op == "band" and cell.dtype == "float32")


@pytest.mark.parametrize(
    ("row", "cell", "passes", "fails"),
    [
        # The expected deviation passes; a pass and another deviation fail.
        ({}, CELL, "wrong", {"works": "Remove the row", "hangs": "Correct the row"}),
        (None, CELL, "works", {"wrong": "declare the deviation"}),
        (None, UNDEFINED, "refuses", {"wrong": "asks for refuses"}),
        # A row of another torch is neither expected nor told as unused.
        ({"torch": "<2.0"}, CELL, "works", {"wrong": "declare the deviation"}),
        ({"torch": ">=2.0,<99.0"}, CELL, "wrong", {"works": "Remove the row"}),
        # A row leaves excluded cells to the contract.
        ({"except": [CELL.name]}, CELL, "works", {"wrong": "declare the deviation"}),
    ],
)
def test_what_is_expected(
    tmp_path: Path, row: dict[str, Any] | None, cell: Cell, passes: str, fails: dict[str, str]
) -> None:
    """If this fails, a backend that got worse passes, or one that got better keeps its excuse."""
    expectations = read(tmp_path, *([] if row is None else [{**ROW, **row}]))
    if not row or "except" not in row:
        expectations.check_cells(all_cells())
    assert expectations.status_of(cell).value == passes
    for status in (passes, "not run"):
        assert expectations.problem(Result(cell, Status(status), "7 for 8")) == ""
    for status, text in fails.items():
        problem = expectations.problem(Result(cell, Status(status), "7 for 8"))
        assert text in problem
        assert len(problem.splitlines()) == 3


def test_a_cell_that_is_not_steady_is_left_out(tmp_path: Path) -> None:
    """If this fails, a cell that hangs about every third time makes every third run of the kit red."""
    expectations = read(tmp_path, {**ROW, "status": "not run"})
    with CellSession(backend_named("gloo"), preloads=False) as session:
        result = session.run(CELL, expectations.status_of(CELL))
    assert result.status is Status.NOT_RUN
    assert "expectation file" in result.detail
    assert expectations.problem(result) == ""


NOT_RUN = "absent: torch was built without it"


@pytest.mark.parametrize(
    ("rows", "more", "text"),
    [
        ([{"reason": ""}], {}, "has no reason"),
        ([{"reason": "TODO later on"}], {}, "says nothing"),
        ([{"reason": "short"}], {}, "says nothing"),
        ([{"link": ""}], {}, "has no link"),
        ([{"until": ""}], {}, "has no until"),
        ([{"until": "soon"}], {}, "expected a date"),
        ([{"until": "2020-01-01"}], {}, "looked at again by 2020-01-01"),
        ([{"status": "fails"}], {}, "expected one of 'works', 'refuses'"),
        ([{"cells": []}], {}, "has no cells"),
        ([{"cells": "broadcast/*"}], {}, "expected a list"),
        ([{"cells": ["broadcast/*", ""]}], {}, "has an empty pattern"),
        ([{"except": [7]}], {}, "expected str"),
        ([{"torch": "new"}], {}, "expected conditions such as"),
        ([{"issue": "x"}], {}, "unknown key 'issue'"),
        ([{}], {"backend": "other"}, "'other'"),
        ([{}], {"not_run": NOT_RUN}, "has rows, which only a run can show"),
        ([], {"not_run": ""}, "says nothing"),
        ([], {"not_run": True}, "says nothing"),
        ([], {"notrun": NOT_RUN}, "unknown key 'notrun'"),
        # Rows for cells that do not exist, or that an earlier row covers.
        ([{"cells": ["no_such/*"]}], {}, "covers no cell"),
        ([{}, {}], {}, "covers no cell"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, rows: list[Any], more: dict[str, Any], text: str) -> None:
    """Each error has three lines, and names the file."""
    with pytest.raises(UsageError, match=text) as caught:
        read(tmp_path, *({**ROW, **row} for row in rows), **more).check_cells(all_cells())
    assert len(str(caught.value).splitlines()) == 3
    assert "conformance.json" in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    """No traceback of the JSON module."""
    file = tmp_path / "conformance.json"
    file.write_text("{", encoding="utf-8")
    for path in (file, tmp_path / "absent.json"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_expectations(path, "mine")


def test_a_file_of_a_backend_that_was_not_run(tmp_path: Path) -> None:
    """It holds where the backend is not, and fails where it runs."""
    expectations = read(tmp_path, not_run=NOT_RUN)
    assert expectations.run_problem("no GPU") == ""
    problem = expectations.run_problem(None)
    assert NOT_RUN in problem
    assert len(problem.splitlines()) == 3
    assert read(tmp_path).run_problem(None) == ""


@pytest.mark.parametrize("backend", sorted(backends()))
def test_our_own_files_hold(backend: str) -> None:
    """Each declared backend has a file. Its rows come from runs of a target here; without a run it has none."""
    root = Path(__file__).resolve().parents[2]
    found = read_expectations(root / "backends" / backend / "conformance.json", backend, datetime.date(2026, 12, 1))
    found.check_cells(all_cells())
    targets = (root / "tests" / "conformance" / "BUILD.bazel").read_text(encoding="utf-8")
    assert (f'    backend = "{backend}",' in targets) == (not found.not_run)
    page = (root / "docs" / "evidence" / "deviations.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if f"| `{backend}` |" in line)
    assert found.not_run in row
