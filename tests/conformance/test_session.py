"""What a session makes of a cell that ends in two ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dist_testing.conformance.catalogue import all_cells
from dist_testing.conformance.cell import Cell, Result, Status
from dist_testing.conformance.kit_session import CellSession
from dist_testing.core.ground.backends import backend_named

CELL = next(cell for cell in all_cells() if cell.operation == "broadcast" and cell.contract is Status.WORKS)

OTHER = next(cell for cell in all_cells() if cell.operation == "barrier" and cell.world_size == CELL.world_size)


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


@pytest.mark.parametrize(
    ("ends", "counts"),
    [
        # Of the first run, of the run alone, of the run after the same cells; "" if it does not come so far.
        pytest.param(("wrong", "wrong", ""), ("wrong", "alone"), id="always"),
        pytest.param(("wrong", "works", "wrong"), ("wrong", "among others (on ranks of its own: works)"), id="history"),
        pytest.param(("hangs", "works", "hangs"), ("hangs", "among others (on ranks of its own: works)"), id="hang"),
        pytest.param(("wrong", "works", "works"), ("works", "alone"), id="once"),
        pytest.param(
            ("works", "wrong", "works"), ("wrong", "alone (after other cells on the same ranks: works)"), id="alone"
        ),
    ],
)
def test_what_counts_if_a_cell_ends_in_two_ways(
    session: CellSession,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    ends: tuple[str, str, str],
    counts: tuple[str, str],
) -> None:
    """If this fails, a cell that hangs after others counts as one that works, or a busy machine as a defect."""
    runs: list[str] = []
    session._before = [OTHER]

    def once(cell: Cell, limit_s: float, *, alone: bool = False) -> Result:
        if cell is OTHER:
            runs.append("other")
            return Result(cell, Status.WORKS)
        runs.append("alone" if alone else "among others")
        status = Status(ends[1] if alone else ends[2] if "alone" in runs else ends[0])
        return Result(cell, status, runs[-1])

    monkeypatch.setattr(session, "_once", once)
    expected = Status.REFUSES if ends[0] == "works" else None
    result = session.run(CELL, expected)
    assert (result.status.value, result.detail) == counts
    assert runs == ["among others", "alone", *(["other", "among others"] if ends[2] else [])]
    told = [line for line in lines if CELL.name in line and "wrong, among others" in line]
    assert len(told) == (ends == ("wrong", "works", "works"))


def test_a_cell_that_ends_as_expected_runs_once(session: CellSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the kit takes twice its time."""
    runs: list[bool] = []

    def once(cell: Cell, limit_s: float, *, alone: bool = False) -> Result:
        runs.append(alone)
        return Result(cell, Status.WRONG, "7 for 8")

    monkeypatch.setattr(session, "_once", once)
    assert session.run(CELL, Status.WRONG).detail == "7 for 8"
    assert runs == [False]
