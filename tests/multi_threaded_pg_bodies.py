"""Functions that every rank of a threaded world runs: scenarios that pass, for each front end to run in its own way.

The expected values come from plain arithmetic on the rank numbers. The tensors have two dimensions: a group that takes
their number of elements for the size of the first dimension, or refuses more than one dimension, fails here.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.testing import assert_close


def _size() -> int:
    return dist.get_world_size()


def _rank() -> int:
    return dist.get_rank()


def _full(value: float, *shape: int) -> torch.Tensor:
    return torch.full(shape or (3, 3), float(value))


def _rows(numbers: list[int]) -> torch.Tensor:
    # Two columns that differ: elements that move to another column show.
    return torch.tensor([[number, -number] for number in numbers])


def _empty_rows(count: int) -> torch.Tensor:
    return torch.empty(count, 2, dtype=torch.int64)


def broadcast_object_list() -> None:
    """Broadcast objects, not only tensors, from the source."""
    objects: list[object] = [{"from": _rank()}, (_rank(),)]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [{"from": 1}, (1,)]


def all_to_all_single_with_tensor_sizes() -> None:
    """Exchange rows with sizes that are tensors; each rank sends one, two, ... rows."""
    size, rank = _size(), _rank()
    rows = torch.arange(1, size + 1)
    sent = _rows([peer + 10 * rank for peer in range(size) for _ in range(peer + 1)])
    output = _empty_rows(size * (rank + 1))
    # The annotation says lists; torch's own suite passes tensors.
    sizes_out: Any = rows[rank].repeat(size)
    sizes_in: Any = rows
    dist.all_to_all_single(output, sent, sizes_out, sizes_in)
    assert_close(output, _rows([rank + 10 * source for source in range(size) for _ in range(rank + 1)]))


def all_to_all_single_with_list_sizes() -> None:
    """Exchange rows: each rank sends nothing to itself and two rows to the next."""
    size, rank = _size(), _rank()
    previous = (rank - 1) % size
    sizes_in = [2 if peer == (rank + 1) % size else 0 for peer in range(size)]
    sizes_out = [2 if peer == previous else 0 for peer in range(size)]
    output = _empty_rows(2)
    dist.all_to_all_single(output, _rows([rank, rank + 10]), sizes_out, sizes_in)
    assert_close(output, _rows([previous, previous + 10]))


def all_to_all_single_without_sizes() -> None:
    """Exchange equal shares, without sizes."""
    size, rank = _size(), _rank()
    output = _empty_rows(size)
    dist.all_to_all_single(output, _rows([peer + 10 * rank for peer in range(size)]))
    assert_close(output, _rows([rank + 10 * source for source in range(size)]))


def all_to_all() -> None:
    """Exchange lists of tensors."""
    size, rank = _size(), _rank()
    output = [torch.empty(3, 3) for _ in range(size)]
    dist.all_to_all(output, [_full(peer + 10 * rank) for peer in range(size)])
    for source, tensor in enumerate(output):
        assert_close(tensor, _full(rank + 10 * source))


def all_gather() -> None:
    """Gather the tensors of all ranks on all ranks."""
    output = [torch.empty(3, 3) for _ in range(_size())]
    dist.all_gather(output, _full(_rank()))
    for source, tensor in enumerate(output):
        assert_close(tensor, _full(source))


def gather() -> None:
    """Gather the tensors of all ranks on one rank."""
    output = [torch.empty(3, 3) for _ in range(_size())] if _rank() == 1 else None
    dist.gather(_full(_rank()), output, dst=1)
    for source, tensor in enumerate(output or []):
        assert_close(tensor, _full(source))


def broadcast_from_every_rank() -> None:
    """Broadcast from every rank in turn."""
    for source in range(_size()):
        tensor = _full(_rank())
        dist.broadcast(tensor, src=source)
        assert_close(tensor, _full(source))


def scatter() -> None:
    """Scatter one part to each rank."""
    for source in range(_size()):
        parts = [_full(peer + 10 * source) for peer in range(_size())] if _rank() == source else None
        output = torch.empty(3, 3)
        dist.scatter(output, parts, src=source)
        assert_close(output, _full(_rank() + 10 * source))


def default_roots() -> None:
    """Call what has a root without one: rank 0 is the root."""
    size, rank = _size(), _rank()
    part = torch.empty(3, 3)
    dist.scatter(part, [_full(10 + peer) for peer in range(size)] if rank == 0 else None)
    assert_close(part, _full(10 + rank))

    parts = [torch.empty(3, 3) for _ in range(size)] if rank == 0 else None
    dist.gather(_full(rank), parts)
    for source, tensor in enumerate(parts or []):
        assert_close(tensor, _full(source))

    objects: list[object] = [f"of {rank}"]
    dist.broadcast_object_list(objects)
    assert objects == ["of 0"]

    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered)
    assert gathered == (list(range(size)) if rank == 0 else None)

    own: list[Any] = [None]
    dist.scatter_object_list(own, [f"for {peer}" for peer in range(size)] if rank == 0 else None)
    assert own == [f"for {rank}"]


def reduce_scatter_sum() -> None:
    """Give each rank its part of the sum."""
    output = torch.empty(3, 3)
    dist.reduce_scatter(output, [_full(part + _rank()) for part in range(_size())])
    assert_close(output, _full(_size() * _rank() + sum(range(_size()))))


def reduce_scatter_avg() -> None:
    """Give each rank its part of the mean."""
    output = torch.empty(3, 3)
    dist.reduce_scatter(output, [_full(part + _rank()) for part in range(_size())], op=dist.ReduceOp.AVG)
    assert_close(output, _full(_rank() + sum(range(_size())) / _size()))


def all_reduce_sum() -> None:
    """Sum over all ranks, the most used collective."""
    tensor = _full(_rank() + 1)
    dist.all_reduce(tensor)
    assert_close(tensor, _full(sum(range(1, _size() + 1))))


def all_reduce_with_arithmetic_ops() -> None:
    """Reduce integers and floats with product, minimum and maximum."""
    values = range(1, _size() + 1)
    for dtype in (torch.int64, torch.float32):
        for op, expected in (
            (dist.ReduceOp.PRODUCT, math.prod(values)),
            (dist.ReduceOp.MIN, 1),
            (dist.ReduceOp.MAX, _size()),
        ):
            tensor = torch.full((3, 3), _rank() + 1, dtype=dtype)
            dist.all_reduce(tensor, op=op)
            assert_close(tensor, torch.full((3, 3), expected, dtype=dtype))


def all_reduce_with_bitwise_ops() -> None:
    """Reduce integers with and, or, exclusive or."""
    values = [(1 << 8) | (1 << rank) for rank in range(_size())]
    for op, function in (
        (dist.ReduceOp.BAND, operator.and_),
        (dist.ReduceOp.BOR, operator.or_),
        (dist.ReduceOp.BXOR, operator.xor),
    ):
        tensor = torch.full((3, 3), values[_rank()])
        dist.all_reduce(tensor, op=op)
        assert_close(tensor, torch.full((3, 3), functools.reduce(function, values)))


def all_reduce_coalesced() -> None:
    """Reduce several tensors in one call."""
    tensors = [_full(_rank()), _full(_rank() + 1, 5, 2)]
    dist.all_reduce_coalesced(tensors)
    total = sum(range(_size()))
    assert_close(tensors[0], _full(total))
    assert_close(tensors[1], _full(total + _size(), 5, 2))


def sub_groups() -> None:
    """Reduce in two halves of the ranks at the same time."""
    ranks = list(range(_size()))
    halves = [ranks[::2], ranks[1::2]]
    groups = [dist.new_group(half) for half in halves]
    mine = _rank() % 2
    tensor = _full(_rank())
    dist.all_reduce(tensor, group=groups[mine])
    assert_close(tensor, _full(sum(halves[mine])))
    assert dist.get_group_rank(groups[mine], _rank()) == _rank() // 2


def group_from_another_thread() -> None:
    """Run a collective in a thread that a rank starts; the thread belongs to that rank, as in a process."""
    seen: list[tuple[int, float]] = []
    group = dist.group.WORLD

    def reduce() -> None:
        # Autograd refuses to change such a tensor in place; a collective may.
        tensor = _full(_rank()).requires_grad_()
        dist.all_reduce(tensor, group=group)
        seen.append((_rank(), tensor[2, 2].item()))

    thread = threading.Thread(target=reduce)
    thread.start()
    thread.join()
    assert seen == [(_rank(), sum(range(_size())))]


def autograd_backward_sees_the_group() -> None:
    """Run a backward pass on the rank's own thread, so that collectives in it find the rank's group."""
    where: list[tuple[int, int]] = []

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        where.append((threading.get_ident(), _rank()))
        reduced = gradient.clone()
        dist.all_reduce(reduced)
        return reduced

    weight = torch.ones(3, 3, requires_grad=True)
    weight.register_hook(hook)  # type: ignore[no-untyped-call]  # in torch
    (weight * (_rank() + 1)).sum().backward()  # type: ignore[no-untyped-call]  # in torch
    assert where == [(threading.get_ident(), _rank())]
    assert weight.grad is not None
    assert_close(weight.grad, _full(sum(range(1, _size() + 1))))


# Each public function of this module.
BODIES: tuple[Callable[[], None], ...] = tuple(
    value
    for name, value in list(globals().items())
    if inspect.isfunction(value) and value.__module__ == __name__ and not name.startswith("_")
)
