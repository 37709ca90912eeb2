"""The consumer's own backend moves tensors, and the marker knows it."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

import dist_testing


@pytest.mark.distributed(features=["moves_data"])
def test_sum(world: dist_testing.World) -> None:
    """Runs with every backend of the target."""
    total = torch.tensor([float(world.rank)])
    dist.all_reduce(total)
    assert total.item() == sum(range(world.size))


@pytest.mark.distributed(backends=["ring"])
def test_ring(world: dist_testing.World) -> None:
    """Runs with the consumer's own backend only."""
    assert (world.backend, dist.get_backend(), os.environ["RING_GREETING"]) == ("ring", "ring", "hello")
    assert type(dist.group.WORLD).__name__ == "RingGroup"
    tensor = torch.tensor([float(world.rank)])
    dist.broadcast(tensor, src=1)
    assert tensor.item() == 1
    dist.barrier()


@pytest.mark.distributed(backends=["gloo"])
def test_gloo(world: dist_testing.World) -> None:
    """Runs beside it with one of the library's."""
    assert dist.get_backend() == "gloo"
