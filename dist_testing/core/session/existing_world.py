"""Finds out whether this process is a rank already, of a world that another launcher has started."""

from __future__ import annotations

import os
from typing import Protocol

from dist_testing.core.ground.add_ons import AddOn, add_ons, blaming


class ExistingRank(Protocol):
    """This process as a rank of an existing world."""

    @property
    def rank(self) -> int:
        """Number of the rank, from 0. Rank 0 is also the runner."""

    @property
    def size(self) -> int:
        """Number of ranks of the world."""


def existing_rank() -> tuple[AddOn, ExistingRank] | None:
    """Return the rank that this process is, and the add-on that knows it; None if it is none.

    Raises:
        UsageError: If the variables of a launcher contradict each other.
    """
    for add_on in add_ons():
        if "existing_rank" in add_on.more:
            with blaming(add_on.name, "its look at the environment"):
                found: ExistingRank | None = add_on.load("existing_rank")(os.environ)
            if found is not None:
                return add_on, found
    return None
