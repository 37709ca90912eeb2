"""A case that fails, wherever it runs."""

from __future__ import annotations

import pytest

import dist_testing


@pytest.mark.distributed
def test_fails(world: dist_testing.World) -> None:
    """Never passes."""
    assert world.rank == world.size
