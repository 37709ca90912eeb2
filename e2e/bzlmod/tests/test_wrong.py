"""Fails on one rank, so that the check can read the report."""

from __future__ import annotations

import pytest

import dist_testing


@pytest.mark.distributed
def test_wrong(world: dist_testing.World) -> None:
    """Rank 1 is wrong."""
    assert world.rank != 1, "rank 1 is wrong on purpose"
