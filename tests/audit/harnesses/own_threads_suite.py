"""A suite whose ranks are threads of this library. It runs with --dist-backend=threaded."""

from __future__ import annotations

import pytest
import torch.distributed as dist

import dist_testing


@pytest.mark.distributed(world_size=2, timeout=10)
def test_threads(world: dist_testing.World) -> None:
    """All ranks meet."""
    dist.barrier()
