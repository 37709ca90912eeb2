"""Small calls of every function, for rules that many functions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dist_testing.conformance.kit import Kit


def small(k: Kit) -> Any:
    """Return a tensor of two elements."""
    return k.tensor(1, 2)


# Function to a call of it that is right in a world of one, apart from the group and other keyword arguments.
CALLS: dict[str, Callable[..., Any]] = {
    "all_gather": lambda k, **more: k.dist.all_gather([small(k) for _ in range(k.size)], small(k), **more),
    "all_gather_into_tensor": lambda k, **more: k.dist.all_gather_into_tensor(
        k.torch.zeros(2 * k.size, device=k.device), small(k), **more
    ),
    "all_gather_object": lambda k, **more: k.dist.all_gather_object([None] * k.size, 1, **more),
    "all_reduce": lambda k, **more: k.dist.all_reduce(small(k), **more),
    "all_to_all": lambda k, **more: k.dist.all_to_all(
        [small(k) for _ in range(k.size)], [small(k) for _ in range(k.size)], **more
    ),
    "all_to_all_single": lambda k, **more: k.dist.all_to_all_single(
        k.torch.zeros(2 * k.size, device=k.device), k.torch.ones(2 * k.size, device=k.device), **more
    ),
    "barrier": lambda k, **more: k.dist.barrier(**more),
    "broadcast": lambda k, **more: k.dist.broadcast(small(k), **{"src": 0, **more}),
    "broadcast_object_list": lambda k, **more: k.dist.broadcast_object_list([1], **{"src": 0, **more}),
    "gather": lambda k, **more: k.dist.gather(
        small(k), [small(k) for _ in range(k.size)] if k.rank == 0 else None, **{"dst": 0, **more}
    ),
    "gather_object": lambda k, **more: k.dist.gather_object(
        1, [None] * k.size if k.rank == 0 else None, **{"dst": 0, **more}
    ),
    "irecv": lambda k, **more: k.dist.irecv(small(k), **{"src": 0, **more}),
    "isend": lambda k, **more: k.dist.isend(small(k), **{"dst": 0, **more}),
    "recv": lambda k, **more: k.dist.recv(small(k), **{"src": 0, **more}),
    "recv_object_list": lambda k, **more: k.dist.recv_object_list([None], **{"src": 0, **more}),
    "reduce": lambda k, **more: k.dist.reduce(small(k), **{"dst": 0, **more}),
    "reduce_scatter": lambda k, **more: k.dist.reduce_scatter(small(k), [small(k) for _ in range(k.size)], **more),
    "reduce_scatter_tensor": lambda k, **more: k.dist.reduce_scatter_tensor(
        small(k), k.torch.ones(2 * k.size, device=k.device), **more
    ),
    "scatter": lambda k, **more: k.dist.scatter(
        small(k), [small(k) for _ in range(k.size)] if k.rank == 0 else None, **{"src": 0, **more}
    ),
    "scatter_object_list": lambda k, **more: k.dist.scatter_object_list(
        [None], [1] * k.size if k.rank == 0 else None, **{"src": 0, **more}
    ),
    "send": lambda k, **more: k.dist.send(small(k), **{"dst": 0, **more}),
    "send_object_list": lambda k, **more: k.dist.send_object_list([1], **{"dst": 0, **more}),
}
SOURCES = ("broadcast", "broadcast_object_list", "irecv", "recv", "recv_object_list", "scatter", "scatter_object_list")
DESTINATIONS = ("gather", "gather_object", "isend", "reduce", "send", "send_object_list")

# Function to a call with something else in the place of its tensors.
TENSOR_CALLS: dict[str, Callable[..., Any]] = {
    "all_gather": lambda k, x: k.dist.all_gather([small(k)], x),
    "all_gather_into_tensor": lambda k, x: k.dist.all_gather_into_tensor(small(k), x),
    "all_reduce": lambda k, x: k.dist.all_reduce(x),
    "all_to_all_single": lambda k, x: k.dist.all_to_all_single(small(k), x),
    "broadcast": lambda k, x: k.dist.broadcast(x, src=0),
    "gather": lambda k, x: k.dist.gather(x, [small(k)], dst=0),
    "irecv": lambda k, x: k.dist.irecv(x, src=0),
    "isend": lambda k, x: k.dist.isend(x, dst=0),
    "recv": lambda k, x: k.dist.recv(x, src=0),
    "reduce": lambda k, x: k.dist.reduce(x, dst=0),
    "reduce_scatter": lambda k, x: k.dist.reduce_scatter(x, [small(k)]),
    "reduce_scatter_tensor": lambda k, x: k.dist.reduce_scatter_tensor(x, small(k)),
    "scatter": lambda k, x: k.dist.scatter(x, [small(k)], src=0),
    "send": lambda k, x: k.dist.send(x, dst=0),
}
