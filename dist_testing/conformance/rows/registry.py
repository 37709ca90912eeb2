"""Registers scripts: functions that run one cell on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from dist_testing.conformance.cell import Cell

if TYPE_CHECKING:
    from dist_testing.conformance.kit import Kit

Script: TypeAlias = "Callable[[Kit], None]"

_scripts: dict[tuple[str, str], Script] = {}
_cells: list[Cell] = []


def script(
    row: str, name: str, worlds: Iterable[int] = (1,), *, group: str = "", fresh: bool = False, functional: bool = False
) -> Callable[[Script], Script]:
    """Return a decorator that registers a script as cells, one per world size.

    A script that returns has seen the right thing. It raises `WrongError` for a wrong result; any other exception is a
    refusal by the backend.

    Args:
        row: Number of the row in the contract.
        name: "operation/what it shows".
        worlds: Sizes of its worlds.
        group: Name of the group on which a good call must work afterwards; "" for the default group.
        fresh: Whether it needs ranks of its own, without a default group.
        functional: Whether it uses functional collectives.
    """
    operation, _, variant = name.partition("/")

    def register(function: Script) -> Script:
        if (operation, variant) in _scripts:
            raise ValueError(f"two scripts are called {name}")
        _scripts[operation, variant] = function
        _cells.extend(
            Cell(row, operation, size, group=group, variant=variant, fresh=fresh, functional=functional)
            for size in worlds
        )
        return function

    return register


def scripted_cells() -> list[Cell]:
    """Return the cells of all scripts that have been imported."""
    return list(_cells)


def script_of(cell: Cell) -> Script | None:
    """Return the script of a cell; None if the table runs it."""
    return _scripts.get((cell.operation, cell.variant)) if cell.dtype == "" else None
