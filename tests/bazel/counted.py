"""What ranks execute, for the coverage of it."""

from __future__ import annotations


def on_rank(rank: int) -> str:
    """A line for each rank."""
    if rank == 0:
        return "first"
    return "second"


def nowhere() -> str:
    """Nobody calls it."""
    return "never"
