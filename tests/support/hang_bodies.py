"""Longer bodies of kinds of hangs: models and their parallel wrappers, and what comes from outside of torch.

The user does not write the calls of the former. No ledger shows that the latter, such as a lock, never end.
"""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from dist_testing import World

_WIDTH = 4
# Buckets of this size hold one layer each. MB.
_BUCKET_MB = 1e-6
# Much longer than any limit of a case. Seconds.
_FOREVER_S = 1e6


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(_WIDTH, _WIDTH)
        self.second = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, batch: torch.Tensor, *, both: bool) -> torch.Tensor:
        """Use one layer or both."""
        hidden: torch.Tensor = self.first(batch)
        return self.second(hidden) if both else hidden


def _batch() -> torch.Tensor:
    return torch.ones(2, _WIDTH)


def _mesh(world: World) -> DeviceMesh:
    return init_device_mesh("cpu", (world.size,))


def _sharded(world: World) -> DTensor:
    return distribute_tensor(torch.ones(world.size, _WIDTH), _mesh(world), [Shard(0)], src_data_rank=None)


def makes_a_mesh(world: World) -> None:
    """Make a mesh of two dimensions, which makes groups."""
    init_device_mesh("cpu", (2, world.size // 2))


def redistributes(world: World) -> None:
    """Replicate a sharded tensor, and read it."""
    _sharded(world).redistribute(placements=[Replicate()]).to_local().sum().item()


def prints_on_rank_0(world: World) -> None:
    """Gather a tensor on the one rank that prints it."""
    tensor = _sharded(world)
    if world.rank == 0:
        print(tensor.full_tensor().sum().item())
    dist.barrier()


def makes_ddp(_: World) -> None:
    """Wrap a model, which compares and sends its parameters."""
    DistributedDataParallel(nn.Linear(_WIDTH, _WIDTH))


def leaves_a_branch(world: World) -> None:
    """Use a layer on all ranks but one."""
    model = DistributedDataParallel(_Branches(), bucket_cap_mb=_BUCKET_MB)
    model(_batch(), both=world.rank != world.size - 1).sum().backward()


def has_fewer_batches(world: World) -> None:
    """Train for one batch less on one rank."""
    model = DistributedDataParallel(nn.Linear(_WIDTH, _WIDTH))
    for _ in range(2 if world.rank == world.size - 1 else 3):
        model(_batch()).sum().backward()


def runs_fsdp(world: World) -> None:
    """Run a sharded model."""
    model: Any = nn.Linear(_WIDTH, _WIDTH)
    fully_shard(model, mesh=_mesh(world))
    model(_batch()).sum().backward()


def runs_pipeline(world: World) -> None:
    """Run a schedule of a pipeline with a stage per rank; torch 2.10 wants as many microbatches."""
    stage = PipelineStage(nn.Linear(_WIDTH, _WIDTH), world.rank, world.size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=world.size)
    if world.rank == 0:
        schedule.step(torch.ones(world.size, _WIDTH))
    else:
        schedule.step()


def saves(world: World) -> None:
    """Save a checkpoint."""
    checkpoint.save(  # type: ignore[attr-defined]
        {"tensor": _sharded(world)}, checkpoint_id=str(world.tmp_path / "checkpoint")
    )


def calls_in_a_thread(world: World) -> None:
    """Leave the call to a thread that waits for something else."""
    if world.rank == 1:
        never = threading.Event()

        def call() -> None:
            never.wait()
            dist.all_reduce(torch.ones(3))

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join()
    else:
        dist.all_reduce(torch.ones(3))


def sleeps(world: World) -> None:
    """Sleep on one rank."""
    if world.rank == 1:
        time.sleep(_FOREVER_S)
    dist.barrier()


def loops(world: World) -> None:
    """Loop on one rank."""
    while world.rank == 1:
        torch.ones(3).sum()
    dist.barrier()


def waits_for_a_lock(world: World) -> None:
    """Take the lock of a file on rank 0, which keeps it while it waits for rank 1."""
    path = str(world.tmp_path / "lock")
    with open(path, "w") as file:
        if world.rank == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()
        if world.rank == 1:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()


def waits_for_a_child(world: World) -> None:
    """Wait for a process that never ends."""
    if world.rank == 1:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(1e6)"], check=True)
    dist.barrier()


def is_stopped(world: World) -> None:
    """Stop the process of one rank."""
    if world.rank == 1:
        signal.raise_signal(signal.SIGSTOP)
    dist.barrier()
