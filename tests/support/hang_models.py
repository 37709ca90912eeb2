"""Hangs that models and their parallel wrappers make: calls that the user does not write."""

from __future__ import annotations

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
