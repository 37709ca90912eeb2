"""A suite on the engine of this library."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import dist_testing


@pytest.mark.distributed(world_size=2, timeout=10)
def test_fork(world: dist_testing.World) -> None:
    """Ranks forked from the fork server."""
    value = torch.ones(2, device=world.device)
    dist.all_reduce(value)
    assert value[0] == 2


@pytest.mark.distributed(world_size=2, timeout=20, isolation="spawn")
def test_spawn(world: dist_testing.World) -> None:
    """Ranks that are fresh interpreters."""
    dist.barrier()


@pytest.mark.distributed(world_size=2, timeout=10, isolation="pool")
def test_pool(world: dist_testing.World) -> None:
    """Ranks of a worker pool."""
    dist.barrier()


class UnittestTest(dist_testing.MultiProcessTestCase):
    """The front end of unittest."""

    world_size = 2
    case_timeout_s = 10.0

    def test_method(self) -> None:
        """All ranks meet."""
        dist.init_process_group(
            "gloo", rank=self.rank, world_size=self.world_size, init_method=f"file://{self.file_name}"
        )
        dist.barrier()
        dist.destroy_process_group()
