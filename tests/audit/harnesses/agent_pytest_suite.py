"""A model of Megatron-LM: `agent.py 2 -m pytest`, every rank is a pytest."""

import torch.distributed as dist

from tests.audit.harnesses import world_body


def test_meets() -> None:
    """All ranks meet."""
    world_body.join_from_environment()
    dist.barrier()
    world_body.leave()
