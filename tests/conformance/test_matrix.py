"""The matrix: written, read, merged, compared, shown."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from dist_testing.conformance.catalogue import all_cells
from dist_testing.conformance.cell import Cell, Result, Status, matches
from dist_testing.conformance.expectations import Expectations
from dist_testing.conformance.matrix import (
    FEATURE_CELLS,
    WITHOUT_CELLS,
    Matrix,
    difference,
    feature_problems,
    markdown,
    page,
    read_matrix,
    write_matrix,
)
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.errors import ReportError, UsageError


def matrix_of(*results: Result, torch: str = "2.13.0") -> Matrix:
    """Return a matrix with these results."""
    matrix = Matrix("mine", torch)
    for result in results:
        matrix.add(result, Expectations())
    return matrix


WORKS = Result(Cell("7.1", "broadcast", 2), Status.WORKS)
WRONG = Result(Cell("6.1", "all_reduce", 2), Status.WRONG, "<7> & 8", 0.5, True)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """`cells` maps a name to an object; the file has a schema number."""
    matrix = matrix_of(WORKS, WRONG)
    write_matrix(matrix, tmp_path / "out")
    content = json.loads((tmp_path / "out" / "matrix.json").read_text(encoding="utf-8"))
    assert content["schema"] == 1
    assert content["counts"] == {"works": 1, "wrong": 1}
    assert content["cells"]["all_reduce/w2"] == {
        "status": "wrong",
        "contract": "works",
        "row": "6.1",
        "seconds": 0.5,
        "as_expected": False,
        "detail": "<7> & 8",
        "group_lives": True,
    }
    assert read_matrix(tmp_path / "out" / "matrix.json") == matrix
    names = {"crcr.json", "matrix.json", "matrix.md", "matrix.html"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names


def test_the_relay_gets_what_ended_otherwise_than_expected() -> None:
    """If this fails, a backend is shown as good that is not, or as bad because a machine lacks what a cell needs."""
    lacking = Result(Cell("7.2", "all_gather", 2), Status.NOT_RUN, "no GPU")
    payload = json.loads(matrix_of(WORKS, WRONG, lacking).to_relay())
    assert payload["conclusion"] == "failure"
    assert payload["test_results"] == {"passed": 1, "failed": 1, "skipped": 1, "total": 3}
    assert payload["failed_tests"] == [{"name": "all_reduce/w2", "message": "wrong: <7> & 8"}]
    assert json.loads(matrix_of(WORKS, lacking).to_relay())["conclusion"] == "success"
    # Nothing has run, so nothing is known.
    assert json.loads(matrix_of(lacking).to_relay())["conclusion"] == "failure"
    many = matrix_of(*(Result(Cell("7.2", f"call_{number}", 2), Status.HANGS, "é" * 300) for number in range(1100)))
    failed = json.loads(many.to_relay())["failed_tests"]
    assert len(failed) == 1000
    assert max(len(test["message"].encode()) for test in failed) <= 1024


def test_shards_merge_and_other_runs_do_not() -> None:
    """Parts of one run become one matrix."""
    whole = matrix_of(WORKS)
    whole.merge(matrix_of(WRONG))
    assert len(whole.cells) == 2
    with pytest.raises(ReportError, match="not parts of one run"):
        whole.merge(matrix_of(WRONG, torch="2.12.0"))


def test_what_the_pages_say() -> None:
    """One file, no script, nothing from elsewhere; texts of a backend cannot become markup."""
    before, after = matrix_of(WORKS, WRONG), matrix_of(Result(WRONG.cell, Status.WORKS))
    # Also cells that one side lacks.
    assert difference(before, after) == {"all_reduce/w2": ("wrong", "works"), "broadcast/w2": ("works", "")}
    assert "No cell differs." in page(before, before)
    text = page(before, matrix_of(WORKS))
    for part in ("&lt;7&gt; &amp; 8", "Difference: 1 cells", '<td class="wrong">wrong</td>', '<td class="n">1</td>'):
        assert part in text
    for outside in ("<7>", "<script", "http://", "https://", "src="):
        assert outside not in text
    text = markdown(before)
    for part in ("2 cells: 1 works, 1 wrong", "| `all_reduce` |  |  | 1 |", "| wrong | not declared |"):
        assert part in text
    every = page(matrix_of(*(Result(cell, Status.WORKS) for cell in all_cells())))
    # So that it opens at once and can be attached anywhere.
    assert len(every.encode()) <= 300_000


def test_features_are_checked_both_ways() -> None:
    """A declared feature that fails, and an undeclared one that works."""
    cell = next(cell for cell in all_cells() if cell.name == "recv/from_anybody/w2")
    declares = Backend("mine", "mine", "cpu", features=("recv_any_source",))
    for backend, status, text in (
        (declares, Status.WORKS, None),
        (declares, Status.HANGS, "declares the feature recv_any_source"),
        (Backend("mine", "mine", "cpu"), Status.WORKS, "does not declare the feature recv_any_source"),
        (Backend("mine", "mine", "cpu"), Status.REFUSES, None),
    ):
        found = feature_problems(matrix_of(Result(cell, status)), backend)
        assert [text is not None and text in problem for problem in found] == ([True] if text else [])


def test_every_feature_has_cells() -> None:
    """If this fails, a backend can declare a feature, or leave it out, and no run of the kit shows that this is untrue.

    A new feature gets cells, or a reason why none can show it.
    """
    assert not FEATURE_CELLS.keys() & WITHOUT_CELLS.keys()
    table = json.loads(resources.files("dist_testing").joinpath("backends.json").read_text(encoding="utf-8"))
    assert FEATURE_CELLS.keys() | WITHOUT_CELLS.keys() == table["features"].keys()
    for pattern in FEATURE_CELLS.values():
        assert any(matches(cell.name, [pattern]) for cell in all_cells()), pattern


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": 99}', '{"schema": 1, "backend": "x", "torch": "y", "cells": {"a": {}}}']
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """No traceback of ours: neither for another file, nor for a folder that cannot be made."""
    file = tmp_path / "matrix.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ReportError, match="no capability matrix"):
        read_matrix(file)
    with pytest.raises(UsageError, match="cannot be written"):
        write_matrix(matrix_of(WORKS), file / "out")
