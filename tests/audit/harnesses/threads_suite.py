"""A model whose ranks are threads of the process that runs pytest."""

from __future__ import annotations

import threading
from typing import Any

import torch.distributed as dist

from tests.audit.harnesses import world_body


def test_threads(tmp_path: Any) -> None:
    """All ranks meet."""
    errors: list[str] = []

    def run(rank: int) -> None:
        try:
            world_body.join(str(tmp_path / "f"), rank, 2)
            dist.barrier()
        except BaseException as error:
            errors.append(f"rank {rank}: {error!r}")
        finally:
            world_body.leave()

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    assert not errors, errors
