import pytest
import torch
import torch.distributed as dist


@pytest.mark.distributed
def test_all_reduce(world):  # runs on every rank
    t = torch.full((10,), float(world.rank), device=world.device)
    dist.all_reduce(t)
    assert t[0] == sum(range(world.size))
