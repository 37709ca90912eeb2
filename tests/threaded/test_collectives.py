"""Every collective gives the right values; the expected ones come from plain Python on lists."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

from dist_testing.threaded import data
from tests.threaded.worlds_of_threads import default_group, pass_on_threads

SIZE = 4
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (2, 3), (0, 4)]


def value(rank: int, shape: tuple[int, ...] = (5,), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor whose values depend on the rank, small enough to be exact in every dtype."""
    count = torch.Size(shape).numel()
    return torch.tensor([(rank + 1) * (index % 3 + 1) for index in range(count)]).reshape(shape).to(dtype)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same values that is not contiguous."""
    return torch.stack([tensor, torch.zeros_like(tensor)], dim=-1)[..., 0]


def same(expected: torch.Tensor, found: torch.Tensor) -> None:
    """Check that two tensors are equal: every bit, the dtype and the shape."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


OPS: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": min,
    "MAX": max,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}


def reduced(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Reduce tensors element by element with Python numbers."""
    columns = zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True)
    numbers = [functools.reduce(OPS[name], column) for column in columns]
    return (
        torch.tensor(numbers, dtype=torch.complex64 if tensors[0].is_complex() else None)
        .reshape(tensors[0].shape)
        .to(tensors[0].dtype)
    )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in OPS
        for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16)
        if not (name.startswith("B") and dtype.is_floating_point)
    ],
)
def test_all_reduce_combines_the_tensors_of_all_ranks(name: str, dtype: torch.dtype) -> None:
    """A wrong reduction would make users look for the error in their own code."""
    tensors = [value(rank, dtype=dtype) for rank in range(SIZE)]
    if name == "BXOR" and dtype is torch.bool:
        tensors[0] = ~tensors[0]
    expected = reduced(name, tensors)

    def body(rank: int) -> None:
        tensor = tensors[rank].clone()
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        same(expected, tensor)

    pass_on_threads(body)


@pytest.mark.parametrize("elements", [5, 1 << 17])
@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX", "AVG"])
def test_large_and_small_tensors_are_reduced_alike(name: str, elements: int) -> None:
    """The size selects one of two implementations; the results must not differ."""
    factors = [1.0, 2.0, 4.0, 0.5]
    results = {"SUM": 7.5, "PRODUCT": 4.0, "MIN": 0.5, "MAX": 4.0, "AVG": 1.875}

    def body(rank: int) -> None:
        tensor = torch.full((elements,), factors[rank])
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        same(torch.full((elements,), results[name]), tensor)

    pass_on_threads(body)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float32, 1.75), (torch.float16, 1.75), (torch.int64, 1)], ids=str
)
def test_avg_divides_by_the_ranks(dtype: torch.dtype, expected: float) -> None:
    """Averages of integers are truncated, as NCCL does."""

    def body(rank: int) -> None:
        tensor = torch.full((3,), [1, 1, 2, 3][rank], dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        same(torch.full((3,), expected, dtype=dtype), tensor)

    pass_on_threads(body)


def test_premul_sum_multiplies_before_it_adds() -> None:
    """Each rank has its own factor, a number or a tensor."""

    def body(rank: int) -> None:
        tensor = torch.full((3,), 2.0)
        factor = 0.5 if rank % 2 else torch.tensor([10.0])
        dist.all_reduce(tensor, _make_nccl_premul_sum(factor))
        same(torch.full((3,), 42.0), tensor)
        output = torch.empty(1)
        dist.reduce_scatter(output, [torch.full((1,), 2.0)] * SIZE, _make_nccl_premul_sum(3.0))
        same(torch.tensor([24.0]), output)

    pass_on_threads(body)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_collective_takes_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Backends differ most in empty, 0-d and non-contiguous tensors."""
    tensors = [value(rank, shape, dtype) for rank in range(SIZE)]
    total = reduced("SUM", tensors)

    def body(rank: int) -> None:
        for make in (torch.clone, strided):
            own = make(tensors[rank])

            tensor = make(own)
            dist.all_reduce(tensor)
            same(total, tensor)

            tensor = make(own)
            dist.reduce(tensor, dst=2)
            same(total if rank == 2 else own, tensor)

            tensor = make(own)
            dist.broadcast(tensor, src=1)
            same(tensors[1], tensor)

            outputs = [make(torch.zeros_like(own)) for _ in range(SIZE)]
            dist.all_gather(outputs, own)
            for expected, output in zip(tensors, outputs, strict=True):
                same(expected, output)

            outputs = [make(torch.zeros_like(own)) for _ in range(SIZE)]
            dist.gather(own, outputs if rank == 3 else None, dst=3)
            for expected, output in zip(tensors if rank == 3 else [torch.zeros_like(own)] * SIZE, outputs, strict=True):
                same(expected, output)

            output = make(torch.zeros_like(own))
            dist.scatter(output, [make(tensor) for tensor in tensors] if rank == 1 else None, src=1)
            same(own, output)

            output = make(torch.zeros_like(own))
            dist.reduce_scatter(output, [make(tensor) for tensor in tensors])
            same(reduced("SUM", [own] * SIZE), output)

            outputs = [make(torch.zeros_like(own)) for _ in range(SIZE)]
            dist.all_to_all(outputs, [make(own) for _ in range(SIZE)])
            for expected, output in zip(tensors, outputs, strict=True):
                same(expected, output)

    pass_on_threads(body)


# Newer torch has other names for them.
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64], ids=str)
def test_single_tensor_collectives_cut_their_tensors(dtype: torch.dtype) -> None:
    """FSDP and DTensor use these collectives for all their data."""
    tensors = [value(rank, (2, 3), dtype) for rank in range(SIZE)]

    def body(rank: int) -> None:
        gathered = torch.zeros(2 * SIZE, 3, dtype=dtype)
        dist.all_gather_into_tensor(gathered, tensors[rank])
        same(torch.cat(tensors), gathered)

        stacked = torch.zeros(SIZE, 2, 3, dtype=dtype)
        dist.all_gather_into_tensor(stacked, tensors[rank])
        same(torch.stack(tensors), stacked)

        own_part = gathered.tensor_split(SIZE)[rank]
        own_part.copy_(tensors[rank])
        dist.all_gather_into_tensor(gathered, own_part)
        same(torch.cat(tensors), gathered)

        output = torch.zeros(2, 3, dtype=dtype)
        dist.reduce_scatter_tensor(output, torch.cat(tensors))
        same(tensors[rank] * SIZE, output)

        output = torch.zeros(SIZE, 2, dtype=dtype)
        dist.all_to_all_single(output, torch.full((SIZE, 2), rank, dtype=dtype))
        same(torch.tensor([[sender] * 2 for sender in range(SIZE)], dtype=dtype), output)

    pass_on_threads(body)


def test_all_to_all_single_takes_split_sizes() -> None:
    """Rank r sends r + 1 rows to each rank, so the parts of an output have different lengths."""

    def body(rank: int) -> None:
        given = torch.full(((rank + 1) * SIZE, 2), float(rank))
        taken = torch.empty(sum(range(1, SIZE + 1)), 2)
        dist.all_to_all_single(taken, given, list(range(1, SIZE + 1)), [rank + 1] * SIZE)
        expected = [float(sender) for sender in range(SIZE) for _ in range(sender + 1)]
        same(torch.tensor(expected), taken[:, 0])
        same(torch.tensor(expected), taken[:, 1])

    pass_on_threads(body)


def test_ranks_may_pass_tensors_of_different_sizes_if_the_lists_agree() -> None:
    """NCCL allows it: the lists have the same sizes on all ranks, but their entries differ in size."""

    def body(rank: int) -> None:
        outputs = [torch.zeros(size + 1) for size in range(SIZE)]
        dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
        for sender, output in enumerate(outputs):
            same(torch.full((sender + 1,), float(sender)), output)
        output = torch.zeros(rank + 1)
        dist.reduce_scatter(output, [torch.ones(size + 1) for size in range(SIZE)])
        same(torch.full((rank + 1,), float(SIZE)), output)

    pass_on_threads(body)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_coalesced_collectives_move_every_tensor() -> None:
    """These deprecated functions call the methods that the coalescing manager also calls."""

    def body(rank: int) -> None:
        tensors = [torch.full((2,), float(rank)), torch.full((3,), 1.0)]
        dist.all_reduce_coalesced(tensors)
        same(torch.full((2,), 6.0), tensors[0])
        same(torch.full((3,), 4.0), tensors[1])

        # The outer list is by rank, as torch's documentation shows it.
        outputs = [[torch.zeros(2), torch.zeros(1)] for _ in range(SIZE)]
        dist.all_gather_coalesced(outputs, [torch.full((2,), float(rank)), torch.tensor([rank * 10.0])])
        for sender in range(SIZE):
            same(torch.full((2,), float(sender)), outputs[sender][0])
            same(torch.tensor([sender * 10.0]), outputs[sender][1])

    pass_on_threads(body)


def test_object_collectives_pass_objects() -> None:
    """Each rank pickles its own object."""

    def body(rank: int) -> None:
        everybody = [{"rank": number, "list": [number] * number} for number in range(SIZE)]
        own = everybody[rank]

        gathered: list[Any] = [None] * SIZE
        dist.all_gather_object(gathered, own)
        assert everybody == gathered

        gathered = [None] * SIZE
        dist.gather_object(own, gathered if rank == 0 else None, dst=0)
        assert (everybody if rank == 0 else [None] * SIZE) == gathered

        objects: list[Any] = [own, "x"] if rank == 2 else [None, None]
        dist.broadcast_object_list(objects, src=2)
        assert [everybody[2], "x"] == objects

        scattered: list[Any] = [None]
        dist.scatter_object_list(scattered, everybody if rank == 1 else None, src=1)
        assert [own] == scattered

    pass_on_threads(body)


def test_one_tensor_on_all_ranks_is_read_before_it_is_written() -> None:
    """Threads can pass the same tensor on all four ranks; its sum is four times the tensor."""
    shared = torch.full((3,), 2.0)

    def body(rank: int) -> None:
        dist.all_reduce(shared)

    pass_on_threads(body)
    same(torch.full((3,), 8.0), shared)


def test_a_barrier_holds_until_all_ranks_have_called_it() -> None:
    """No rank may pass the barrier before all ranks have reached it."""
    arrived: list[int] = []

    def body(rank: int) -> None:
        for _ in range(20):
            arrived.append(rank)
            dist.barrier()
            assert set(range(SIZE)) == set(arrived)
            dist.barrier()
            if rank == 0:
                arrived.clear()
            dist.barrier()

    pass_on_threads(body)


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


def test_autograd_does_not_see_collectives() -> None:
    """A write to a leaf that requires grad, or to a view, must neither fail nor set a grad_fn."""

    def body(rank: int) -> None:
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

    pass_on_threads(body)


def test_tensors_of_inference_mode_can_be_used_outside_of_it() -> None:
    """If this fails, torch refuses the write to such a tensor, which the groups of processes take."""

    def body(rank: int) -> None:
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

    pass_on_threads(body)


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
