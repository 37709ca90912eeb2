"""torch's own classes, as installed: MultiProcessTestCase and MultiThreadedTestCase."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase

from tests.audit.harnesses import world_body


class ProcessTest(MultiProcessTestCase):
    """Ranks that are processes."""

    @property
    def world_size(self) -> int:
        """Two ranks."""
        return 2

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        self._spawn_processes()

    def test_meets(self) -> None:
        """All ranks meet."""
        world_body.join(self.file_name, self.rank, self.world_size)
        value = torch.ones(2)
        dist.all_reduce(value)
        assert value[0] == 2
        world_body.leave()


class ThreadTest(MultiThreadedTestCase):
    """Ranks that are threads."""

    @property
    def world_size(self) -> int:
        """Two ranks."""
        return 2

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        self._spawn_threads()  # type: ignore[no-untyped-call]

    def test_meets(self) -> None:
        """All ranks meet."""
        value = torch.ones(2)
        dist.all_reduce(value)
        assert value[0] == 2
