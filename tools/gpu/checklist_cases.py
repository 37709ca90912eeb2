"""The cases that the checklist runs on a GPU: each checks one promise of the library."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import threading

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

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
    assert [call.operation for call in calls][-1:] == ["all_reduce"]


@pytest.mark.distributed(backends=["nccl"])
def test_ranks_of_nccl_train_a_sharded_model(world: dist_testing.World) -> None:
    """A step of FSDP2 uses all_gather, reduce_scatter and a mesh; the result is that of one rank."""
    # Late: the imports take seconds, also on ranks of other cases that are fresh interpreters.
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    mesh = init_device_mesh("cuda", (world.size,))
    torch.manual_seed(0)
    alone = torch.nn.Linear(8, 8, device=world.device)
    sharded = copy.deepcopy(alone)
    fully_shard(sharded, mesh=mesh)
    for model in (alone, sharded):
        model(torch.ones(2, 8, device=world.device)).sum().backward()
    gradient = sharded.weight.grad
    assert isinstance(gradient, DTensor)
    torch.testing.assert_close(gradient.full_tensor(), alone.weight.grad)


@pytest.mark.distributed(backends=["nccl"])
def test_a_rank_that_stays_away(world: dist_testing.World) -> None:
    """Fails on purpose: the others wait on their devices for rank 0."""
    tensor = torch.ones(8, device=world.device)
    dist.all_reduce(tensor)
    if world.rank:
        dist.all_reduce(tensor)
        torch.cuda.synchronize()


@pytest.mark.distributed(backends=["nccl"])
def test_a_rank_that_dies(world: dist_testing.World) -> None:
    """Fails on purpose: the others wait on their devices for a rank that is gone."""
    tensor = torch.ones(8, device=world.device)
    dist.all_reduce(tensor)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()


@pytest.mark.distributed(backends=["nccl"])
def test_a_kernel_that_fails(world: dist_testing.World) -> None:
    """Fails on purpose, without a call that waits for the kernel."""
    torch.zeros(2, device=world.device)[torch.tensor([10], device=world.device)]


@pytest.mark.distributed(world_size=1)
class TestAloneOnItsGpu:
    """A class of its own, because the ranks of a pool have one world size."""

    def test_a_rank_sees_the_gpus_of_its_world_alone(self, world: dist_testing.World) -> None:
        """They are UUIDs if the driver reports them."""
        assert torch.cuda.device_count() == 1
        assert "," not in os.environ["CUDA_VISIBLE_DEVICES"]

    def test_other_programs_see_the_lease(self, world: dist_testing.World) -> None:
        """`flock` fails on the node while this rank runs."""
        names = [
            os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and _is_open(fd)
        ]
        # CUDA opens the node as well; one locked descriptor is enough.
        leased = {name for name in names if name.removeprefix("/dev/nvidia").isdecimal()}
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
