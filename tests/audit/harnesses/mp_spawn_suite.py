"""A suite in the style of torchrec: each test calls `torch.multiprocessing.spawn`."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from tests.audit.harnesses import world_body


def _rank(rank: int, size: int, path: str) -> None:
    world_body.join(path, rank, size)
    dist.barrier()
    world_body.leave()


def test_meets(tmp_path: Path) -> None:
    """All ranks meet."""
    spawn(_rank, args=(2, str(tmp_path / "f")), nprocs=2)  # type: ignore[no-untyped-call]
