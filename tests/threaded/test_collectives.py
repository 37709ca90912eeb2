"""What only ranks that are threads can do to a collective; its values are checked by the conformance kit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

from dist_testing.threaded import data
from tests.threaded.worlds_of_threads import default_group, on_threads, pass_on_threads

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
    """A write to a leaf that requires grad, or to a view, must neither fail nor set a grad_fn."""
    leaf = torch.ones(4, requires_grad=True)
    dist.all_reduce(leaf)
    assert leaf.is_leaf
    same(torch.full((4,), 4.0), leaf.detach())
    base = torch.zeros(2, 2)
    view = base[0]
    dist.broadcast(view, src=0)
    assert view.grad_fn is None
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
    seen: list[torch.Tensor] = []

    def note(tensors: Any) -> list[torch.device]:
        seen.extend(tensors)
        return []

    monkeypatch.setattr(data, "accelerators", note)

    def body(rank: int) -> None:
        output, source = torch.zeros(2), torch.ones(2)
        WITH_TWO_TENSORS[name](default_group(), output, source).wait()
        same(source, output)
        assert [True, True] == [any(tensor is other for other in seen) for tensor in (output, source)]

    pass_on_threads(body, 1)
