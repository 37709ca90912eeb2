"""The cells as pytest tests: one node id per cell. `backend_conformance_test` and `pytest --pyargs` run this file.

The backend is that of the target or of `--dist-backend`. Environment variables have the other settings.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_testing.conformance.catalogue import all_cells, chosen_cells
from dist_testing.conformance.cell import Cell, Status, matches
from dist_testing.conformance.expectations import Expectations, read_expectations
from dist_testing.conformance.kit_session import CellSession, cell_limit
from dist_testing.conformance.matrix import FEATURE_CELLS, feature_problems, write_matrix
from dist_testing.core.ground.runfiles import declared_file
from dist_testing.core.pytest.in_runner import BUDGET_KEY
from dist_testing.core.session.session import current_session

# $CONFORMANCE_CELL_LIMIT (user): with the conformance kit: limit of one cell in seconds (default: 5).
# $CONFORMANCE_CELLS (user): with the conformance kit: patterns of the cells to run, separated by spaces (default: all).
# $CONFORMANCE_WORLD_SIZES (user): with the conformance kit: sizes to run, separated by commas (default: 1,2,3,4,5,7).
# $CONFORMANCE_EXPECTATIONS (user): with the conformance kit: the expectation file (default: none).
_LIMIT = "CONFORMANCE_CELL_LIMIT"
_EXPECTATIONS = "CONFORMANCE_EXPECTATIONS"
_CELLS = chosen_cells(
    all_cells(), os.environ.get("CONFORMANCE_CELLS", "").split(), os.environ.get("CONFORMANCE_WORLD_SIZES") or None
)


@pytest.fixture(scope="session")
def kit(request: pytest.FixtureRequest) -> Iterator[CellSession]:
    """The running kit. Two tests want the cells that show features; they run once."""
    session = current_session()
    assert session is not None, "the pytest plugin of dist_testing is not loaded"
    limit_s = cell_limit(_LIMIT, os.environ.get(_LIMIT))
    budget = request.config.stash.get(BUDGET_KEY, None)
    selected = {item.name for item in request.session.items}
    preloads = any(cell.is_functional and f"test_cell[{cell.name}]" in selected for cell in _CELLS)
    backend = session.engine.spec.backend
    expectations = Expectations()
    if source := os.environ.get(_EXPECTATIONS):
        # Under Bazel the variable names a runfile, whose whole path differs from machine to machine.
        path = declared_file(_EXPECTATIONS) if "TEST_SRCDIR" in os.environ else None
        expectations = dataclasses.replace(read_expectations(path or source, backend.name), source=source)
        expectations.check_cells(all_cells())
    with CellSession(
        backend,
        budget,
        expectations=expectations,
        preloads=preloads,
        limit_s=limit_s,
        debug_rank=session.engine.debug_rank,
        settings=session.engine.spec.settings,
    ) as running:
        yield running
        if outputs := os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR"):
            write_matrix(running.matrix, Path(outputs))


def test_features(kit: CellSession) -> None:
    """The features in the declaration of the backend are what its cells show."""
    for cell in _CELLS:
        if matches(cell.name, FEATURE_CELLS.values()):
            kit.checked(cell)
    problems = feature_problems(kit.matrix, kit.backend)
    assert not problems, "\n\n".join(problems)


def test_expectation_file(kit: CellSession) -> None:
    """A file that says that the backend was not run is not used where it runs."""
    problem = kit.expectations.run_problem(kit.missing_need(_CELLS[0].world_size))
    assert not problem, problem


@pytest.mark.parametrize("cell", _CELLS, ids=[cell.name for cell in _CELLS])
def test_cell(kit: CellSession, cell: Cell) -> None:
    """The cell ends as the contract asks for, or as the expectation file says."""
    result, problem = kit.checked(cell)
    if result.status is Status.NOT_RUN:
        pytest.skip(result.detail)
    if problem:
        pytest.fail(problem, pytrace=False)


# Tells the front end that the cases of this file run on ranks, although no marker says so.
for _test in (test_cell, test_expectation_file, test_features):
    _test.starts_ranks = True  # type: ignore[union-attr]
