"""torch's `MultiProcessTestCase`: a fresh interpreter per rank and test."""

from __future__ import annotations

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.testing._internal.common_distributed import MultiProcessTestCase

from contestants.torch_suite import add_cases, run_suite
from contestants.trivial import run_trivial
from contestants.turns import order


def _run(test: MultiProcessTestCase, case: str) -> None:
    store = FileStore(test.file_name, test.world_size)
    dist.init_process_group("gloo", store=store, rank=test.rank, world_size=test.world_size)
    run_trivial(case, test.rank)


@add_cases(_run)
class ProcessTest(MultiProcessTestCase):
    """Used as in torch's own test files."""

    @property
    def world_size(self) -> int:
        """Ranks."""
        return order().world_size

    def setUp(self) -> None:
        """Runs in the parent."""
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    run_suite(ProcessTest)
