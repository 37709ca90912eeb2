"""A model of DeepSpeed's DistributedTest: a pool of workers runs the body of a class's test.

It waits long for a task whose worker has died, because `multiprocessing.Pool` never tells; then it ends the session.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from tests.audit.harnesses import world_body

_LIMIT_S = 6


class DistributedTest:
    """The base of tests whose methods run on ranks."""

    is_dist_test = True
    world_size = 2

    def _dist_run(self, body: Callable[..., None], path: str, rank: int) -> str:
        world_body.join(path, rank, self.world_size)
        try:
            body(self)
        except pytest.skip.Exception as skipped:
            return str(skipped)
        dist.barrier()
        world_body.leave()
        return ""

    def launch(self, body: Callable[..., None], path: str) -> None:
        """Run a body on all ranks."""
        pool = multiprocessing.get_context("fork").Pool(self.world_size)
        tasks = pool.starmap_async(self._dist_run, [(body, path, rank) for rank in range(self.world_size)])
        try:
            skips = tasks.get(_LIMIT_S)
        except multiprocessing.TimeoutError:
            pool.terminate()
            pytest.exit("Test hanged, exiting", returncode=1)
        pool.close()
        pool.join()
        if any(skips):
            pytest.skip(skips[0])


def _meet(_test: DistributedTest) -> None:
    dist.barrier()


class TestPool(DistributedTest):
    """Its ranks meet."""

    def test_meets(self, tmp_path: Any) -> None:
        """All ranks meet."""
        self.launch(_meet, str(tmp_path / "f"))
