"""Functions that every rank of a threaded world runs: scenarios that pass, for each front end to run in its own way.

They show that each front end makes the same world. What the collectives do is checked by the conformance kit.
"""

from __future__ import annotations

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


def all_reduce_sum() -> None:
    """Sum over all ranks, the most used collective."""
    tensor = _full(_rank() + 1)
    dist.all_reduce(tensor)
    assert_close(tensor, _full(sum(range(1, _size() + 1))))


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


BODIES: tuple[Callable[[], None], ...] = (
    all_to_all_single_with_tensor_sizes,
    default_roots,
    all_reduce_sum,
    sub_groups,
    group_from_another_thread,
    autograd_backward_sees_the_group,
)
