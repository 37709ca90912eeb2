"""A model of TensorRT-LLM's spawn_multiprocess_job: it joins the processes, and never looks at their exit codes.

A process that its ranks start outlives them.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch.distributed as dist

from tests.audit.harnesses import world_body


def _rank(rank: int, size: int, path: str) -> None:
    world_body.join(path, rank, size)
    dist.barrier()
    world_body.leave()


def spawn_multiprocess_job(size: int, path: str) -> None:
    """Run all ranks."""
    ranks = [multiprocessing.get_context("fork").Process(target=_rank, args=(rank, size, path)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)


def test_job(tmp_path: Any) -> None:
    """All ranks meet."""
    spawn_multiprocess_job(2, str(tmp_path / "f"))
