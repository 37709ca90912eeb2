"""The case that the benches time: one collective of four numbers, or many of them, or none."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from contestants.turns import EMPTY_CASE, MEMORY_CASE, MEMORY_FILE, order, turns

_MANY = "collectives-"

_OWN_PSS = re.compile(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", re.MULTILINE)


def collectives_case(number: int) -> str:
    """Return the name of a case that runs a number of collectives before its own."""
    return f"{_MANY}{number}"


def run_trivial(case: str, rank: int) -> None:
    """Run the case on a rank, in the default group."""
    if case.startswith(EMPTY_CASE):
        return
    if case.startswith(_MANY):
        value = torch.zeros(4)
        for _ in range(int(case.removeprefix(_MANY))):
            dist.all_reduce(value)
    value = torch.ones(4)
    dist.all_reduce(value)
    assert value[0].item() == order().world_size
    if case == MEMORY_CASE:
        # Between the barriers every rank waits, and has used its group.
        dist.barrier()
        if rank == 0:
            order().folder.joinpath(MEMORY_FILE).write_text(str(_tree_pss_bytes()), encoding="utf-8")
        dist.barrier()


def _tree_pss_bytes() -> int:
    """Return the memory of the contestant and all its descendants; a page that they share counts once.

    Pages of files do not count: they are the kernel's cache of the libraries, and the number of processes on the
    machine that share them changes all the time.
    """
    contestant = psutil.Process(turns().contestant_pid)
    total_kb = 0
    for process in (contestant, *contestant.children(recursive=True)):
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
        total_kb += sum(map(int, _OWN_PSS.findall(rollup)))
    return 1024 * total_kb
