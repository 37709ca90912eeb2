"""Tests of the project, which use the server of their world."""

import pytest
import torch.distributed as dist
from key_value import Client


# The second try finds no key of the first one.
@pytest.mark.distributed
@pytest.mark.parametrize("_try", [1, 2])
def test_ranks_share_a_server(world, _try):
    with Client() as client:
        if world.rank == 0:
            assert client.keys() == []
        dist.barrier()
        client.ask("add", "sum", world.rank + 1)
        dist.barrier()
        assert client.get("sum") == str(sum(range(world.size + 1)))
