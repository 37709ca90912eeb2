"""The two classes that need torch._dynamo, in a module of their own because its import takes a second."""

from __future__ import annotations

import logging
import unittest
from typing import Any

import torch
import torch._dynamo.test_case
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch._logging._internal import trace_log

from dist_testing.compat.classes import DistributedTestBase
from dist_testing.core.ground.skips import TEST_SKIPS


class DynamoDistributedSingleProcTestCase(torch._dynamo.test_case.TestCase):
    """Runs tests in the runner itself, with a default group of one rank for the class. Skips without an accelerator.

    Attributes:
        rank: 0.
        device: Such as "cuda:0".
        device_ids: Argument for DistributedDataParallel; None for its default.
    """

    rank = 0
    device = ""
    device_ids: list[int] | None = None

    @classmethod
    def setUpClass(cls) -> None:
        """Create the default group; raise SkipTest without an accelerator."""
        super().setUpClass()
        accelerator = torch.accelerator.current_accelerator()
        # A build for CUDA has one even on a machine without a GPU.
        if accelerator is None or not torch.accelerator.is_available():
            raise unittest.SkipTest(TEST_SKIPS["no_accelerator"].message)
        cls.device = f"{accelerator.type}:{cls.rank}"
        backend = dist.get_default_backend_for_device(accelerator.type)
        # The only rank has no peers, so it needs no port.
        dist.init_process_group(backend, rank=cls.rank, world_size=1, store=HashStore())

    @classmethod
    def tearDownClass(cls) -> None:
        """Destroy the default group."""
        dist.destroy_process_group()
        super().tearDownClass()


class DynamoDistributedMultiProcTestCase(DistributedTestBase):
    """Runs tests of compiled code on as many ranks as there are accelerators."""

    @property
    def world_size(self) -> int:
        """The number of accelerators of this machine."""
        return torch.accelerator.device_count()

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:
        # Structured traces cost time, and tests do not read them.
        trace_log.addHandler(logging.NullHandler())
        super()._run(rank, test_name, file_name, parent_pipe, **kwargs)
