"""Finds out whether this process is a rank already, of a world that another launcher has started."""

from __future__ import annotations

import os
from typing import Protocol

from dist_testing.core.ground.add_ons import AddOn, call_parts


class ExistingRank(Protocol):
    """This process as a rank of an existing world."""

    @property
    def rank(self) -> int:
        """Number of the rank, from 0. Rank 0 is also the runner."""

    @property
    def size(self) -> int:
        """Number of ranks of the world."""


def existing_rank() -> tuple[AddOn, ExistingRank] | None:
    """Return the rank that this process is, and the add-on that knows it; None if it is none."""
    return next((found for found in call_parts("existing_rank", os.environ) if found[1] is not None), None)
