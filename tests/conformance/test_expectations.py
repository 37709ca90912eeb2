"""Expectation files: strict both ways, and bad ones refused with three parts."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from dist_testing.conformance.catalogue import all_cells
from dist_testing.conformance.cell import Result, Status
from dist_testing.conformance.expectations import Expectations, read_expectations
from dist_testing.conformance.kit_session import CellSession
from dist_testing.core.ground.backends import backend_named, backends
from dist_testing.core.ground.errors import UsageError

NAME = "broadcast/from_the_wrong/w2"
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


def test_a_row_is_strict_both_ways(tmp_path: Path) -> None:
    """The expected deviation passes; a pass and another deviation fail, and the text says what to do."""
    expectations = read(tmp_path, ROW)
    assert expectations.problem(Result(CELL, Status.WRONG, "7 for 8")) == ""
    assert "Remove the row" in expectations.problem(Result(CELL, Status.WORKS))
    assert "Correct the row" in expectations.problem(Result(CELL, Status.HANGS))


def test_a_cell_that_is_not_steady_is_left_out(tmp_path: Path) -> None:
    """If this fails, a cell that hangs about every third time makes every third run of the kit red."""
    expectations = read(tmp_path, {**ROW, "status": "not run"})
    with CellSession(backend_named("gloo"), preloads=False) as session:
        result = session.run(CELL, expectations.status_of(CELL))
    assert result.status is Status.NOT_RUN
    assert "expectation file" in result.detail
    assert expectations.problem(result) == ""


def test_without_a_row_the_contract_counts(tmp_path: Path) -> None:
    """A deviation that no row declares fails."""
    expectations = read(tmp_path)
    assert expectations.problem(Result(CELL, Status.WORKS)) == ""
    assert "declare the deviation" in expectations.problem(Result(CELL, Status.WRONG, "7 for 8"))
    assert expectations.problem(Result(CELL, Status.NOT_RUN, "no GPU")) == ""


def test_a_refusal_that_the_contract_asks_for_is_none(tmp_path: Path) -> None:
    """Bitwise operations on floats have no value."""
    cell = next(cell for cell in all_cells() if cell.op == "band" and cell.dtype == "float32")
    expectations = read(tmp_path)
    assert expectations.problem(Result(cell, Status.REFUSES, "RuntimeError")) == ""
    assert expectations.problem(Result(cell, Status.WRONG, "returned")) != ""


def test_a_row_of_another_torch_does_not_count(tmp_path: Path) -> None:
    """It is neither expected nor told as unused."""
    expectations = read(tmp_path, {**ROW, "torch": "<2.0"})
    expectations.check_cells(all_cells())
    assert expectations.status_of(CELL) is Status.WORKS
    assert read(tmp_path, {**ROW, "torch": ">=2.0,<99.0"}).status_of(CELL) is Status.WRONG


def test_excluded_cells(tmp_path: Path) -> None:
    """A row leaves them to the contract."""
    assert read(tmp_path, {**ROW, "except": [CELL.name]}).status_of(CELL) is Status.WORKS


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"reason": ""}, "has no reason"),
        ({"reason": "TODO later on"}, "says nothing"),
        ({"reason": "short"}, "says nothing"),
        ({"link": ""}, "has no link"),
        ({"until": ""}, "has no until"),
        ({"until": "soon"}, "expected a date"),
        ({"until": "2020-01-01"}, "looked at again by 2020-01-01"),
        ({"status": "fails"}, "expected one of 'works', 'refuses'"),
        ({"cells": []}, "has no cells"),
        ({"cells": "broadcast/*"}, "expected a list"),
        ({"cells": ["broadcast/*", ""]}, "has an empty pattern"),
        ({"except": [7]}, "expected str"),
        ({"torch": "new"}, "expected conditions such as"),
        ({"issue": "x"}, "unknown key 'issue'"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    """Each error has three lines, and names the file."""
    with pytest.raises(UsageError, match=text) as caught:
        read(tmp_path, {**ROW, **change})
    assert len(str(caught.value).splitlines()) == 3
    assert "conformance.json" in str(caught.value)


def test_a_file_of_another_backend_is_refused(tmp_path: Path) -> None:
    """A copied file with the old name would expect another backend's bugs."""
    with pytest.raises(UsageError, match="'other'"):
        read(tmp_path, ROW, backend="other")


def test_rows_for_cells_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    """Also those that an earlier row covers."""
    for rows in ([{**ROW, "cells": ["no_such/*"]}], [ROW, ROW]):
        with pytest.raises(UsageError, match="covers no cell"):
            read(tmp_path, *rows).check_cells(all_cells())


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    """No traceback of the JSON module."""
    file = tmp_path / "conformance.json"
    file.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be read"):
        read_expectations(file, "mine")
    with pytest.raises(UsageError, match="cannot be read"):
        read_expectations(tmp_path / "absent.json", "mine")


NOT_RUN = "absent: torch was built without it"


def test_a_file_of_a_backend_that_was_not_run(tmp_path: Path) -> None:
    """It holds where the backend is not, and fails where it runs."""
    expectations = read(tmp_path, not_run=NOT_RUN)
    assert expectations.run_problem("no GPU") == ""
    problem = expectations.run_problem(None)
    assert NOT_RUN in problem
    assert len(problem.splitlines()) == 3
    assert read(tmp_path).run_problem(None) == ""


@pytest.mark.parametrize(
    ("rows", "more", "text"),
    [
        ([ROW], {"not_run": NOT_RUN}, "has rows, which only a run can show"),
        ([], {"not_run": ""}, "says nothing"),
        ([], {"not_run": True}, "says nothing"),
        ([], {"notrun": NOT_RUN}, "unknown key 'notrun'"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, rows: list[Any], more: dict[str, Any], text: str) -> None:
    """Each error has three lines."""
    with pytest.raises(UsageError, match=text) as caught:
        read(tmp_path, *rows, **more)
    assert len(str(caught.value).splitlines()) == 3


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
