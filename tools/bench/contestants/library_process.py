"""The library's `MultiProcessTestCase` under plain unittest. The group is left to the class, as torch's allows."""

from __future__ import annotations

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from contestants.torch_suite import add_cases, run_suite
from contestants.trivial import run_trivial
from contestants.turns import order
from dist_testing import MultiProcessTestCase


def _run(test: MultiProcessTestCase, case: str) -> None:
    store = FileStore(test.file_name, test.world_size)
    dist.init_process_group("gloo", store=store, rank=test.rank, world_size=test.world_size)
    run_trivial(case, test.rank)


@add_cases(_run)
class ProcessTest(MultiProcessTestCase):
    """A class as users write it."""

    world_size = order().world_size


if __name__ == "__main__":
    run_suite(ProcessTest)
