"""Cells that a script describes: a function that runs one cell on one rank. Every rank calls it.

These modules import no torch, because the runner imports them to know the cells. A script gets torch from its `Kit`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from dist_testing.conformance.cell import Cell
from dist_testing.conformance.kit import Kit

Script = Callable[[Kit], None]

_scripts: dict[tuple[str, str], Script] = {}
_cells: list[Cell] = []


def script(
    row: str | Mapping[str, str],
    name: str,
    worlds: Collection[int] = (1,),
    *,
    each: Collection[str] = (),
    group: str = "",
    fresh: bool = False,
    init: bool | float = False,
) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that registers a script as cells, one per world size.

    A script that returns has seen the right thing. It raises `WrongError` for a wrong result; any other exception is a
    refusal by the backend. Its name is "operation/what it shows"; each entry of `each` takes the place of "{}" there,
    and the function gets it as `what`. A mapping as `row` names the row for each entry, which its keys are then.

    `group` is the name of the group on which a good call must work afterwards, by default the default group. `fresh`:
    the script needs ranks of its own, without a default group. `init`: the same, and the default group is made before
    the script, with this limit in seconds, or with torch's.
    """
    rows = row if isinstance(row, Mapping) else dict.fromkeys(each or [""], row)
    is_fresh, limit_s = fresh or bool(init), None if init is True else init

    def register(function: Callable[..., None]) -> Any:
        for what, number in rows.items():
            operation, _, variant = name.format(what).partition("/")
            if (operation, variant) in _scripts:
                raise ValueError(f"two scripts are called {name.format(what)}")
            run = partial(function, what=what) if "{}" in name else function
            _scripts[operation, variant] = partial(_run_after_init, run, limit_s) if init else run
            for size in worlds:
                _cells.append(Cell(number, operation, size, group=group, variant=variant, fresh=is_fresh))
        return function

    return register


def _run_after_init(run: Script, limit_s: float | None, k: Kit) -> None:
    k.init(limit_s)
    run(k)


def scripted_cells() -> list[Cell]:
    """Return the cells of all scripts, after the import of every module of scripts, which registers its cells."""
    for found in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{found.name}")
    return list(_cells)


def script_of(cell: Cell) -> Script | None:
    """Return the script of a cell; None if the table runs it."""
    return _scripts.get((cell.operation, cell.variant)) if cell.dtype == "" else None
