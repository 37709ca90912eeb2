"""Compares the tests that the launched processes have collected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

# Key in the store of the names of the tests of rank 0.
COLLECTED_KEY = "collected"


def digest(names: Sequence[str]) -> str:
    """Return what is the same for the same tests, in whatever order."""
    return hashlib.sha256(to_text(names).encode()).hexdigest()


def to_text(names: Sequence[str]) -> str:
    """Return the names as text for the store."""
    return json.dumps(sorted(names))


def first_difference(rank: int, own: Sequence[str], of_rank_0: str) -> str:
    """Return the first difference between a rank's own tests and those of rank 0, as `to_text` has written them.

    Raises:
        ValueError: If the text is none.
    """
    expected = {str(name) for name in json.loads(of_rank_0)}
    differing = sorted(expected.symmetric_difference(own))
    if not differing:
        return ""
    has, lacks = (0, rank) if differing[0] in expected else (rank, 0)
    more = f" ({len(differing) - 1} more differ)" if len(differing) > 1 else ""
    return f"rank {has} has {differing[0]}, and rank {lacks} does not{more}"
