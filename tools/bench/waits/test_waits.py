"""Cases that wait, for `tools/bench/side_by_side.py`."""

import os
import time

import pytest
import torch
import torch.distributed as dist

import dist_testing

_WAIT_S = float(os.environ["BENCH_WAIT_S"])


@pytest.mark.distributed(world_size=2)
@pytest.mark.parametrize("n", range(int(os.environ["BENCH_CASES"])))
def test_waits(world: dist_testing.World, n: int) -> None:
    """Wait, and make a collective call."""
    time.sleep(_WAIT_S)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world.size
