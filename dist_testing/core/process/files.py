"""Names of the files in the folder of a world."""

from __future__ import annotations


def log_name(rank: int) -> str:
    """Return the name of the file that takes the output of a rank."""
    return f"rank-{rank}.log"


def text_name(rank: int) -> str:
    """Return the name of the file that takes the texts of a rank that are too long for a message."""
    return f"rank-{rank}.texts"
