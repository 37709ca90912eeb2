"""torch's own classes, used as in torch's own test files.

python -m contestants.torch_suite process|continuous|threaded
"""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.testing._internal.common_distributed import (
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
)

from contestants.suite import add_cases, run_suite
from contestants.trivial import run_trivial
from contestants.turns import order


def _run_trivial(test: Any, case: str) -> None:
    run_trivial(case, test.rank)


def _run_trivial_in_own_group(test: MultiProcessTestCase, case: str) -> None:
    store = FileStore(test.file_name, test.world_size)
    dist.init_process_group("gloo", store=store, rank=test.rank, world_size=test.world_size)
    run_trivial(case, test.rank)


@add_cases(_run_trivial_in_own_group)
class ProcessTest(MultiProcessTestCase):
    """A fresh interpreter per rank and test."""

    @property
    def world_size(self) -> int:
        """Ranks."""
        return order().world_size

    def setUp(self) -> None:
        """Runs in the parent."""
        super().setUp()
        self._spawn_processes()


@add_cases(_run_trivial)
class ContinuousTest(MultiProcContinuousTest):
    """Ranks and group are made once for a class."""

    world_size = order().world_size

    @classmethod
    def backend_str(cls) -> str:
        """The backend of the group that the class makes."""
        return "gloo"

    @classmethod
    def device_type(cls) -> str:
        """The device of the tensors."""
        return "cpu"


@add_cases(_run_trivial)
class ThreadedTest(MultiThreadedTestCase):
    """Ranks are threads, and a stand-in replaces the group."""

    @property
    def world_size(self) -> int:
        """Ranks."""
        return order().world_size

    def setUp(self) -> None:
        """Runs in the main thread."""
        super().setUp()
        self._spawn_threads()  # type: ignore[no-untyped-call]  # torch's


_CLASSES = {"process": ProcessTest, "continuous": ContinuousTest, "threaded": ThreadedTest}

if __name__ == "__main__":
    run_suite(_CLASSES[sys.argv[1]])
