"""A script for `agent.py`: its ranks meet once."""

import torch.distributed as dist

from tests.audit.harnesses import world_body

world_body.join_from_environment()
dist.barrier()
world_body.leave()
