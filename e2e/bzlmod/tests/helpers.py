"""Functions that this consumer's tests share."""

from __future__ import annotations

OWNER = "consumer"


def sum_of_ranks(size: int) -> float:
    """Return the sum of all ranks of a world."""
    return size * (size - 1) / 2
