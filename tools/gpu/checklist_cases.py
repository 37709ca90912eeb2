"""The checklist's tests on the GPU: each shows one promise of the library."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch
import torch.distributed as dist

import dist_testing


@pytest.mark.distributed(backends=["cuda_gloo"])
def test_ranks_that_share_a_gpu_compute_and_communicate(world: dist_testing.World) -> None:
    """`fork`, `spawn` and `pool`: ranks use CUDA although the runner has imported torch."""
    tensor = torch.full((1 << 20,), float(world.rank + 1), device=world.device)
    dist.all_reduce(tensor)
    assert tensor.eq(world.size * (world.size + 1) / 2).all()


@pytest.mark.distributed(backends=["cuda_gloo"])
def test_a_rank_cannot_take_the_memory_of_the_others(world: dist_testing.World) -> None:
    """Each rank gets a fraction."""
    _, total = torch.cuda.mem_get_info(world.device)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(total // 2 if world.size > 1 else 2 * total, dtype=torch.uint8, device=world.device)


@pytest.mark.distributed(backends=["nccl"])
def test_a_world_of_nccl(world: dist_testing.World) -> None:
    """The command line sets the number of ranks; one rank is enough to load NCCL and make its communicator."""
    tensor = torch.ones(8, device=world.device)
    dist.all_reduce(tensor)
    assert tensor.eq(world.size).all()


@pytest.mark.distributed(world_size=1)
def test_a_rank_sees_the_gpus_of_its_world_only(world: dist_testing.World) -> None:
    """As UUIDs, if the driver reports them."""
    assert torch.cuda.device_count() == 1
    assert "," not in os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.distributed(world_size=1)
def test_other_processes_see_the_lease(world: dist_testing.World) -> None:
    """`flock` fails on the device node while this rank runs."""
    nodes = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and _is_open(fd)]
    # CUDA opens the node, too; one lock is enough.
    leased = {node for node in nodes if node.removeprefix("/dev/nvidia").isdecimal()}
    assert any(subprocess.run(["flock", "--nonblock", node, "true"]).returncode == 1 for node in leased)


def _is_open(fd: str) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")
