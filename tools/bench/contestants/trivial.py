"""The case that `launch.py` times: one collective of four numbers, and nothing else."""

from __future__ import annotations

import psutil
import torch
import torch.distributed as dist

from contestants.turns import MEMORY_CASE, MEMORY_FILE, order, turns

__all__ = ["run_trivial"]


def run_trivial(case: str, rank: int) -> None:
    """Run the case on a rank, in the default group."""
    value = torch.ones(4)
    dist.all_reduce(value)
    assert value[0].item() == order().world_size
    if case == MEMORY_CASE:
        # Between the barriers every rank stands, and has used its group.
        dist.barrier()
        if rank == 0:
            order().folder.joinpath(MEMORY_FILE).write_text(str(_tree_pss_bytes()), encoding="utf-8")
        dist.barrier()


def _tree_pss_bytes() -> int:
    """Proportional set size of the contestant and of everything below it: a shared page counts once in all."""
    contestant = psutil.Process(turns().contestant_pid)
    processes = [contestant, *contestant.children(recursive=True)]
    return sum(process.memory_full_info().pss for process in processes)
