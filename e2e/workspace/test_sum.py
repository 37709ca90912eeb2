"""Passes, in a repository without modules."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import dist_testing


@pytest.mark.distributed
def test_sum(world: dist_testing.World) -> None:
    """The collective works."""
    total = torch.tensor(float(world.rank), device=world.device)
    dist.all_reduce(total)
    assert total.item() == world.size * (world.size - 1) / 2
