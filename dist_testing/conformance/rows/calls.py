"""Small calls of every function, for rules that many functions share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dist_testing.conformance.kit import Kit

SOURCES = ("broadcast", "broadcast_object_list", "irecv", "recv", "recv_object_list", "scatter", "scatter_object_list")
DESTINATIONS = ("gather", "gather_object", "isend", "reduce", "send", "send_object_list")


def call(k: Kit, name: str, *given: Any, **more: Any) -> Any:
    """Call a function with these arguments; a root or peer that `more` does not name is rank 0."""
    root = {"src": 0} if name in SOURCES else {"dst": 0} if name in DESTINATIONS else {}
    return getattr(k.dist, name)(*given, **{**root, **more})


def right_call(k: Kit, name: str, **more: Any) -> Any:
    """Call a function with arguments that are right in a world of one, apart from the group and other keywords."""
    return call(k, name, *ARGUMENTS[name](k), **more)


def small(k: Kit) -> Any:
    """Return a tensor of two elements."""
    return k.tensor(1, 2)


def _list(k: Kit) -> Any:
    return [small(k) for _ in range(k.size)]


def _whole(k: Kit) -> Any:
    return k.full(1, 2 * k.size)


def _on_root(k: Kit, value: Any) -> Any:
    return value if k.rank == 0 else None


# Function to its arguments, without root or peer.
ARGUMENTS: dict[str, Callable[[Kit], tuple[Any, ...]]] = {
    "all_gather": lambda k: (_list(k), small(k)),
    "all_gather_into_tensor": lambda k: (_whole(k), small(k)),
    "all_gather_object": lambda k: ([None] * k.size, 1),
    "all_reduce": lambda k: (small(k),),
    "all_to_all": lambda k: (_list(k), _list(k)),
    "all_to_all_single": lambda k: (_whole(k), _whole(k)),
    "barrier": lambda k: (),
    "broadcast": lambda k: (small(k),),
    "broadcast_object_list": lambda k: ([1],),
    "gather": lambda k: (small(k), _on_root(k, _list(k))),
    "gather_object": lambda k: (1, _on_root(k, [None] * k.size)),
    "irecv": lambda k: (small(k),),
    "isend": lambda k: (small(k),),
    "recv": lambda k: (small(k),),
    "recv_object_list": lambda k: ([None],),
    "reduce": lambda k: (small(k),),
    "reduce_scatter": lambda k: (small(k), _list(k)),
    "reduce_scatter_tensor": lambda k: (small(k), _whole(k)),
    "scatter": lambda k: (small(k), _on_root(k, _list(k))),
    "scatter_object_list": lambda k: ([None], _on_root(k, [1] * k.size)),
    "send": lambda k: (small(k),),
    "send_object_list": lambda k: ([1],),
}


def calls_with(k: Kit, name: str, kind: type, value: Any) -> Iterator[Callable[[], Any]]:
    """Yield a call of a function for each argument of a type: with this value, the others right in a world of one."""
    right = ARGUMENTS[name](k)
    for place, one in enumerate(right):
        if isinstance(one, kind):
            yield partial(call, k, name, *right[:place], value, *right[place + 1 :])
