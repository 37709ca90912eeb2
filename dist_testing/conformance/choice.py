"""Chooses cells by patterns and world sizes."""

from __future__ import annotations

from collections.abc import Sequence

from dist_testing.conformance.catalogue import WORLD_SIZES
from dist_testing.conformance.cell import Cell, matches
from dist_testing.core.ground.errors import UsageError


def chosen_cells(cells: Sequence[Cell], patterns: Sequence[str], world_sizes: str | None) -> list[Cell]:
    """Return the cells that a command line asks for.

    Args:
        cells: All cells.
        patterns: Patterns of names; empty for all.
        world_sizes: The sizes, such as "2,4"; None for all.

    Raises:
        UsageError: If a pattern matches nothing, or a size is none of the kit's.
    """
    sizes = set(WORLD_SIZES)
    if world_sizes is not None:
        parts = world_sizes.split(",")
        if not all(part.isdecimal() and int(part) in sizes for part in parts):
            raise UsageError(
                f"--world-sizes={world_sizes}: expected some of {', '.join(map(str, WORLD_SIZES))}.\n"
                "The kit has cells for these sizes only.\n"
                "Write --world-sizes=2,3, for example."
            )
        sizes = {int(part) for part in parts}
    for pattern in patterns:
        if not any(matches(cell.name, [pattern]) for cell in cells):
            raise UsageError(
                f"--cells={pattern}: no cell has such a name.\n"
                'A pattern covers the whole name, and "*" stands for any text.\n'
                "--list shows the names of all cells."
            )
    chosen = [cell for cell in cells if cell.world_size in sizes and (not patterns or matches(cell.name, patterns))]
    if not chosen:
        raise UsageError(
            f"--cells={','.join(patterns)} --world-sizes={world_sizes}: no cell fits both.\n"
            "The cells of these names need other world sizes.\n"
            "Leave one of the options out."
        )
    return chosen
