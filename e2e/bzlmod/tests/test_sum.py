"""Passes, and imports only this consumer's packages, although other packages have the same names."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import backends
import dist_testing
from tests import helpers
from tools import ownership


@pytest.mark.distributed
def test_sum(world: dist_testing.World) -> None:
    """The collective works, and every import is the consumer's."""
    assert [backends.OWNER, helpers.OWNER, ownership.OWNER] == 3 * ["consumer"]
    total = torch.tensor(float(world.rank), device=world.device)
    dist.all_reduce(total)
    assert total.item() == helpers.sum_of_ranks(world.size)


class OldTest(dist_testing.MultiProcessTestCase):
    """The unittest front end."""

    world_size = 2

    def test_sum(self) -> None:
        """The collective works."""
        dist.init_process_group(
            "gloo", rank=self.rank, world_size=self.world_size, init_method=f"file://{self.file_name}"
        )
        total = torch.tensor(float(self.rank))
        dist.all_reduce(total)
        assert total.item() == helpers.sum_of_ranks(self.world_size)
