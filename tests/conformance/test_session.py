"""What a session makes of a cell that ends in two ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dist_testing.conformance.catalogue import all_cells
from dist_testing.conformance.cell import Cell, Result, Status
from dist_testing.conformance.kit_session import CellSession
from dist_testing.core.ground.backends import backend_named

CELL = next(cell for cell in all_cells() if cell.operation == "broadcast" and cell.contract is Status.WORKS)


@pytest.fixture
def lines() -> list[str]:
    """The lines that the session has written to the log."""
    return []


@pytest.fixture
def session(lines: list[str]) -> Iterator[CellSession]:
    """A session that starts no ranks."""
    with CellSession(backend_named("gloo"), preloads=False) as session:
        session._engine.log_line = lines.append
        yield session


@pytest.mark.parametrize("second", [Status.WORKS, Status.HANGS, Status.WRONG])
def test_the_run_on_ranks_of_its_own_counts(
    session: CellSession, lines: list[str], monkeypatch: pytest.MonkeyPatch, second: Status
) -> None:
    """If this fails, a cell is blamed for what the cell before it did, or two runs of the kit write two tables."""
    runs: list[bool] = []

    def once(cell: Cell, limit_s: float, *, alone: bool = False) -> Result:
        runs.append(alone)
        return Result(cell, second, "alone") if alone else Result(cell, Status.WRONG, "among others")

    monkeypatch.setattr(session, "_once", once)
    result = session.run(CELL)
    assert runs == [False, True]
    assert (result.status, result.detail) == (second, "alone")
    told = [line for line in lines if CELL.name in line and "wrong, among others" in line]
    assert len(told) == (0 if second is Status.WRONG else 1)


def test_a_cell_that_ends_as_expected_runs_once(session: CellSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the kit takes twice its time."""
    runs: list[bool] = []

    def once(cell: Cell, limit_s: float, *, alone: bool = False) -> Result:
        runs.append(alone)
        return Result(cell, Status.WRONG, "7 for 8")

    monkeypatch.setattr(session, "_once", once)
    assert session.run(CELL, Status.WRONG).detail == "7 for 8"
    assert runs == [False]
