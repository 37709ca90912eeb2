"""The test that loop.py edits: one case, two ranks, one collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from dist_testing import World

# loop.py writes a new number here before each run.
EDIT = 0


@pytest.mark.distributed
def test_all_reduce(world: World) -> None:
    """Every rank gets the sum of the values of all ranks."""
    value = torch.full((10,), float(world.rank + 1))
    dist.all_reduce(value)
    assert sum(range(1, world.size + 1)) == value[0].item()
