"""What only ranks that are threads can do to a collective, and features of torch that build on groups."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dist_testing.threaded import data
from dist_testing.threaded.members import current_member
from tests.threaded.worlds_of_threads import default_group, on_threads, pass_on_threads


@on_threads()
def test_the_world_forgets_a_group_that_all_its_ranks_have_destroyed(rank: int) -> None:
    """Otherwise a process that makes many groups grows."""
    for _ in range(50):
        group = dist.new_group([0, 1])
        if rank < 2:
            dist.barrier(group)
            dist.destroy_process_group(group)
    member = current_member()
    assert member is not None
    dist.barrier()
    assert 10 > len(member.world.groups)


def test_device_meshes_and_dtensors_work() -> None:
    """Most tests on threads are about these."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def body(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert (rank // 2, rank % 2) == (mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank())
        whole = torch.arange(16.0).reshape(4, 4)
        sharded = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        assert (2, 2) == tuple(sharded.to_local().shape)
        torch.testing.assert_close(sharded.full_tensor(), whole)
        product = sharded @ sharded.redistribute(mesh, [Replicate(), Replicate()])
        assert isinstance(product, DTensor)
        torch.testing.assert_close(product.full_tensor(), whole @ whole)

    pass_on_threads(body)


def test_gradients_flow_in_a_process_whose_ranks_have_made_dtensors() -> None:
    """If torch has CUDA but there is no GPU, torch 2.11 ties process state to the first thread that makes one."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    def body(_: int) -> None:
        mesh = init_device_mesh("cpu", (4,))
        whole = distribute_tensor(torch.ones(2, 2), mesh, [Replicate()])
        product = whole @ whole
        assert isinstance(product, DTensor)
        assert [[2.0, 2.0]] * 2 == product.to_local().tolist()

    pass_on_threads(body)
    leaf = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(leaf.sum(), leaf)
    assert [1.0, 1.0] == gradient.tolist()


@on_threads()
def test_data_parallel_training_averages_gradients(rank: int) -> None:
    """DDP's reducer calls the group from C++ in the backward pass."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 2))
    model(torch.full((1, 3), float(rank))).sum().backward()
    weight = model.module.weight.grad
    assert weight is not None
    torch.testing.assert_close(weight, torch.full((2, 3), 1.5))


def test_a_mode_of_a_rank_does_not_see_the_work_for_the_others() -> None:
    """Timing decides which thread does the work, so a count of operations must not contain it."""

    class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    seen: dict[int, int] = {}

    def body(rank: int) -> None:
        tensor = torch.ones(3)
        with Operations() as operations, Functions() as functions:  # type: ignore[no-untyped-call]  # torch's
            # A method of the group: torch hides what is inside its own functions.
            work = default_group().allreduce([tensor])
        work.wait()
        assert operations.count == 0
        assert 4 == tensor[0].item()
        seen[rank] = functions.count

    pass_on_threads(body)
    assert len(set(seen.values())) == 1, seen


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional:FutureWarning")
def test_a_module_that_a_rank_imports_keeps_no_rank_s_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, every rank but the one that imports torch.distributed.nn.functional first fails in its calls."""
    monkeypatch.delitem(sys.modules, "torch.distributed.nn.functional", raising=False)

    def body(rank: int) -> None:
        calls = importlib.import_module("torch.distributed.nn.functional")
        leaf = torch.tensor([float(rank)], requires_grad=True)
        total = calls.all_reduce(leaf)
        assert total.item() == 6
        (gradient,) = torch.autograd.grad(total.sum(), leaf)
        assert gradient.item() == 4

        class OfTest:
            def rank(self, group: Any = dist.group.WORLD) -> int:
                return dist.get_rank(group)

        assert OfTest().rank() == rank
        # A function gets the rank's own group, as ever.
        assert dist.get_rank(dist.group.WORLD) == rank
        assert dist.group.WORLD is not None
        # So does code of `eval`, such as a guard of torch.compile.
        assert dist.group.WORLD is eval("dist.group.WORLD")

    pass_on_threads(body)


@pytest.mark.parametrize("order", ["", "ranks"], ids=["free", "ordered"])
def test_the_barrier_of_a_new_group_ends_also_in_rank_order(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a world with TORCH_DIST_INIT_BARRIER=1 hangs until its deadline where one rank runs at a time."""
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    monkeypatch.setenv("DIST_TESTING_THREAD_ORDER", order)

    def body(rank: int) -> None:
        pair = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
        everyone = dist.new_group()
        total = torch.tensor([float(rank)])
        dist.all_reduce(total, group=pair)
        assert total.item() == [1, 1, 5, 5][rank]
        dist.barrier(group=everyone)

    pass_on_threads(body)


SIZE = 4


def same(expected: torch.Tensor, found: torch.Tensor) -> None:
    """Check that two tensors are equal: every bit, the dtype and the shape."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@on_threads()
def test_premul_sum_multiplies_before_it_adds(rank: int) -> None:
    """Each rank has its own factor, a number or a tensor."""
    tensor = torch.full((3,), 2.0)
    factor = 0.5 if rank % 2 else torch.tensor([10.0])
    dist.all_reduce(tensor, _make_nccl_premul_sum(factor))
    same(torch.full((3,), 42.0), tensor)
    output = torch.empty(1)
    dist.reduce_scatter(output, [torch.full((1,), 2.0)] * SIZE, _make_nccl_premul_sum(3.0))
    same(torch.tensor([24.0]), output)


def test_one_tensor_on_all_ranks_is_read_before_it_is_written() -> None:
    """Threads can pass the same tensor on all four ranks; its sum is four times the tensor."""
    shared = torch.full((3,), 2.0)

    def body(rank: int) -> None:
        dist.all_reduce(shared)

    pass_on_threads(body)
    same(torch.full((3,), 8.0), shared)


def test_a_world_may_have_one_rank_or_many() -> None:
    """Worlds of 128 ranks and of one rank work alike."""

    def body(rank: int) -> None:
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        size = dist.get_world_size()
        same(torch.tensor([size * (size - 1) / 2]), tensor)
        gathered = [torch.zeros(1) for _ in range(size)]
        dist.all_gather(gathered, torch.tensor([float(rank)]))
        assert list(range(size)) == [int(output) for output in gathered]

    pass_on_threads(body, 1)
    pass_on_threads(body, 128)


@on_threads()
def test_autograd_does_not_see_collectives(rank: int) -> None:
    """A write to a leaf that requires grad, or to a view, must neither fail nor set a grad_fn or a new version."""
    leaf = torch.ones(4, requires_grad=True)
    dist.all_reduce(leaf)
    assert leaf.is_leaf
    same(torch.full((4,), 4.0), leaf.detach())
    base = torch.zeros(2, 2)
    view = base[0]
    dist.broadcast(view, src=0)
    assert view.grad_fn is None
    # A backward pass refuses a saved tensor that has got a new version since.
    assert leaf._version == base._version == 0
    with torch.inference_mode():
        tensor = torch.full((2,), float(rank))
        dist.all_reduce(tensor)
    same(torch.full((2,), 6.0), tensor)


@on_threads()
def test_tensors_of_inference_mode_can_be_used_outside_of_it(rank: int) -> None:
    """If this fails, torch refuses the write to such a tensor, which the groups of processes take."""
    with torch.inference_mode():
        ours, other, summed, shared, *whole = (torch.full((4,), float(rank)) for _ in range(8))
        halves = [tensor.view(2, 2)[0] for tensor in whole]
    dist.all_reduce(summed)
    same(torch.full((4,), 6.0), summed)
    dist.broadcast(shared, src=1)
    same(torch.ones(4), shared)
    dist.all_gather(halves, torch.full((2,), float(rank)))
    same(torch.arange(4.0), torch.stack(halves)[:, 0])
    dist.all_to_all_single(other, ours)
    same(torch.arange(4.0), other)
    if rank == 0:
        dist.send(ours, 1)
    elif rank == 1:
        dist.recv(ours, 0)
        same(torch.zeros(4), ours)
    # One rank has a plain tensor, which stays one.
    mixed = torch.zeros(4) if rank == 0 else summed
    dist.all_reduce(mixed)
    same(torch.full((4,), 18.0), mixed)
    assert mixed.is_inference() is (rank > 0)
    assert not mixed.requires_grad


WITH_TWO_TENSORS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], Any]] = {
    "all_gather": lambda group, output, source: group.allgather([output], source),
    "all_gather_coalesced": lambda group, output, source: group.allgather_coalesced([[output]], [source]),
    "all_gather_single": lambda group, output, source: group.all_gather_single(output, source),
    "gather": lambda group, output, source: group.gather([output], source),
    "scatter": lambda group, output, source: group.scatter(output, [source]),
    "all_to_all": lambda group, output, source: group.alltoall([output], [source]),
    "all_to_all_single": lambda group, output, source: group.all_to_all_single(output, source),
    "reduce_scatter": lambda group, output, source: group.reduce_scatter(output, [source]),
    "reduce_scatter_single": lambda group, output, source: group.reduce_scatter_single(output, source),
}


@pytest.mark.parametrize("name", WITH_TWO_TENSORS)
def test_the_streams_of_outputs_and_inputs_are_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may lie on different devices. Another rank would read an input that its GPU has not computed yet."""
    seen: list[list[torch.Tensor]] = []

    def note(tensors: Any) -> list[torch.device]:
        seen.append(list(tensors))
        return []

    monkeypatch.setattr(data, "accelerators", note)

    def body(rank: int) -> None:
        output, source = torch.zeros(2), torch.ones(2)
        WITH_TWO_TENSORS[name](default_group(), output, source).wait()
        same(source, output)
        # The rank waits before the call, and the last rank after the move.
        assert len(seen) == 2
        assert [True, True] == [any(tensor is other for other in seen[0]) for tensor in (output, source)]

    pass_on_threads(body, 1)
