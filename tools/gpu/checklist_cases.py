"""The cases that the checklist runs on a GPU: each checks one promise of the library."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest
import torch
import torch.distributed as dist

import dist_testing
from dist_testing.hang.recorder import device_calls


@pytest.mark.distributed(backends=["cuda_gloo"])
def test_ranks_that_share_a_gpu_compute_and_talk(world: dist_testing.World) -> None:
    """CUDA works in ranks made by `fork`, `spawn` and `pool`, although the runner has imported torch."""
    tensor = torch.full((1 << 20,), float(world.rank + 1), device=world.device)
    dist.all_reduce(tensor)
    assert tensor.eq(world.size * (world.size + 1) / 2).all()


@pytest.mark.distributed(backends=["cuda_gloo"])
def test_a_rank_cannot_take_the_memory_of_the_others(world: dist_testing.World) -> None:
    """Each rank may allocate its fraction only."""
    _, total = torch.cuda.mem_get_info(world.device)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(total // 2 if world.size > 1 else 2 * total, dtype=torch.uint8, device=world.device)


@pytest.mark.distributed(backends=["nccl"])
def test_a_world_of_nccl(world: dist_testing.World) -> None:
    """The command line chooses the world size; one rank is enough to load NCCL and make its communicator."""
    tensor = torch.ones(8, device=world.device)
    dist.all_reduce(tensor)
    assert tensor.eq(world.size).all()


@pytest.mark.distributed(backends=["nccl"])
def test_the_ledger_has_the_calls_of_nccl(world: dist_testing.World) -> None:
    """torch 2.15 has another engine behind the name, whose calls it records by hooks."""
    dist.all_reduce(torch.ones(8, device=world.device))
    torch.cuda.synchronize()
    calls = device_calls()
    print(f"torch {torch.__version__}, {dist.get_backend()}: {calls}")
    assert [call.operation for call in calls][-1:] == ["all_reduce"]


@pytest.mark.distributed(world_size=1)
def test_a_rank_sees_the_gpus_of_its_world_alone(world: dist_testing.World) -> None:
    """They are UUIDs if the driver reports them."""
    assert torch.cuda.device_count() == 1
    assert "," not in os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.distributed(world_size=1)
def test_other_programs_see_the_lease(world: dist_testing.World) -> None:
    """`flock` fails on the node while this rank runs."""
    nodes = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and _is_open(fd)]
    # CUDA opens the node as well; one locked descriptor is enough.
    leased = {node for node in nodes if node.removeprefix("/dev/nvidia").isdecimal()}
    assert any(subprocess.run(["flock", "--nonblock", node, "true"]).returncode == 1 for node in leased)


@pytest.mark.distributed(backends=["threaded"], world_size=3)
def test_a_backward_pass_of_a_thread_sees_the_ranks_group(world: dist_testing.World) -> None:
    """torch has a thread of its own for the nodes of a GPU, which belongs to no rank."""
    where = []

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        where.append((threading.get_ident(), dist.get_rank()))
        reduced = gradient.clone()
        dist.all_reduce(reduced)
        return reduced

    weight = torch.ones(2, device="cuda", requires_grad=True)
    weight.register_hook(hook)  # type: ignore[no-untyped-call]  # in torch
    (weight * (world.rank + 1)).sum().backward()  # type: ignore[no-untyped-call]  # in torch
    assert where == [(threading.get_ident(), world.rank)]
    assert weight.grad is not None
    assert weight.grad.eq(world.size * (world.size + 1) / 2).all()


def _is_open(fd: str) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")
