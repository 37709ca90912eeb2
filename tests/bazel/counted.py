"""Code that ranks execute, to measure its coverage."""

from __future__ import annotations


def on_rank(rank: int) -> str:
    """Executes one line on each rank."""
    if rank == 0:
        return "first"
    return "second"


def nowhere() -> str:
    """Is never called."""
    return "never"
