"""Section 9 of the contract: objects."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.registry import script


def _thing(rank: int) -> Any:
    """Return an object whose pickled size depends on the rank."""
    return {"rank": rank, "text": "x" * (rank * 37), "nested": [(rank, None), b""]}


def _things(ranks: Iterable[int]) -> list[Any]:
    return [_thing(rank) for rank in ranks]


@script("9.1", "all_gather_object/part", (4, 5), group="part")
@script("9.1", "all_gather_object/values", (1, 2, 3, 5))
def _all_gather(k: Kit) -> None:
    group = k.group(k.cell.group)
    if k.rank in k.ranks:
        found: list[Any] = [None] * len(k.ranks)
        k.dist.all_gather_object(found, _thing(k.rank), group=group)
        k.equal(found, _things(k.ranks), "the objects")


@script("9.1", "all_gather_object/large_and_longer_list", (2,))
def _large(k: Kit) -> None:
    """A megabyte; and a list that is longer than the group keeps its rest."""
    found: list[Any] = [None, None, "rest"]
    k.dist.all_gather_object(found, bytes([k.rank]) * (1 << 20))
    k.equal([len(found[0]), len(found[1]), found[2]], [1 << 20, 1 << 20, "rest"], "sizes and rest")
    k.equal(found[1][:2], b"\x01\x01", "the bytes of rank 1")


@script("9.1", "all_gather_object/unpicklable")
def _unpicklable(k: Kit) -> None:
    with k.raises((AttributeError, TypeError, pickle.PicklingError), "pickle"):
        k.dist.all_gather_object([None], lambda: None)


@script("9.2", "gather_object/values", (1, 2, 3))
def _gather(k: Kit) -> None:
    for root in range(k.size):
        found: Any = [None] * k.size if k.rank == root else None
        k.dist.gather_object(_thing(k.rank), found, dst=root)
        if k.rank == root:
            k.equal(found, _things(range(k.size)), f"the objects at {root}")


@script("9.2", "gather_object/refuses_lists_on_others", (2, 3))
def _gather_elsewhere(k: Kit) -> None:
    """Only the root has a list, and it must have one; the refused call leaves the group usable."""
    with k.raises(ValueError, "object_gather_list|destination|dst|gather list"):
        k.dist.gather_object(1, None if k.rank == 0 else [None] * k.size, dst=0)


@script("9.3", "{}/device_of_the_tensors", (2,), each=("broadcast_object_list", "send_object_list"))
def _device(k: Kit, what: str) -> None:
    """`device` says where the objects travel."""
    found = [_thing(1) if k.rank == 0 else None]
    if what == "broadcast_object_list":
        k.dist.broadcast_object_list(found, src=0, device=k.device)
    elif k.rank == 0:
        k.dist.send_object_list(found, dst=1, device=k.device)
    else:
        k.dist.recv_object_list(found, src=0, device=k.device)
    k.equal(found, [_thing(1)], "the objects")


@script("9.5", "recv_object_list/from_anybody", (2,))
def _receive_any(k: Kit) -> None:
    """Without a source it takes a list of any rank, as its documentation says."""
    if k.rank == 0:
        k.dist.send_object_list([_thing(2)], dst=1)
    else:
        found: list[Any] = [None]
        try:
            k.equal(k.dist.recv_object_list(found), 0, "the sender")
        except Exception:
            # The sender waits.
            k.dist.recv_object_list([None], src=0)
            raise
        k.equal(found, [_thing(2)], "the objects")


@script("9.3", "broadcast_object_list/values", (1, 2, 3))
def _broadcast(k: Kit) -> None:
    for root in range(k.size):
        things: list[Any] = [_thing(root), root, None] if k.rank == root else [0, 0, 0]
        k.dist.broadcast_object_list(things, src=root)
        k.equal(things, [_thing(root), root, None], f"the objects of {root}")


@script("9.3", "broadcast_object_list/root_in_the_group", (4, 5), group="part")
def _broadcast_part(k: Kit) -> None:
    """group_src is the rank in the group."""
    if k.rank % 2:
        for place in range(2):
            things = [k.rank * 10]
            k.dist.broadcast_object_list(things, group_src=place, group=k.group("part"))
            k.equal(things, [10 + 20 * place], f"the object of rank {1 + 2 * place}")


@script("9.4", "scatter_object_list/values", (1, 2, 3))
def _scatter(k: Kit) -> None:
    """Only the first entry is written."""
    for root in range(k.size):
        output = [None, "rest"]
        k.dist.scatter_object_list(output, _things(range(k.size)) if k.rank == root else None, src=root)
        k.equal(output, [_thing(k.rank), "rest"], f"the object of {root}")


@script("9.4", "scatter_object_list/refusals")
def _scatter_refusals(k: Kit) -> None:
    bad: tuple[Any, ...] = ((1,), [])
    for output in bad:
        with k.raises((ValueError, RuntimeError), "list|at least"):
            k.dist.scatter_object_list(output, [1], src=0)
    with k.raises(ValueError):
        k.dist.scatter_object_list([None], None, src=0)


@script("9.5", "send_object_list/values", (2, 3))
def _send(k: Kit) -> None:
    things = [_thing(3), 7, "text"]
    if k.rank == 0:
        k.dist.send_object_list(things, dst=1)
    elif k.rank == 1:
        found: list[Any] = [None] * 3
        k.equal(k.dist.recv_object_list(found, src=0), 0, "the sender")
        k.equal(found, things, "the objects")


@script("9.5", "send_object_list/batch", (2,))
def _send_batch(k: Kit) -> None:
    if k.rank == 0:
        k.dist.send_object_list([_thing(2)], dst=1, use_batch=True)
    else:
        found: list[Any] = [None]
        k.dist.recv_object_list(found, src=0, use_batch=True)
        k.equal(found, [_thing(2)], "the object")


@script("9.5", "{}/to_itself", (1, 2), each=("send_object_list", "recv_object_list"))
def _send_self(k: Kit, what: str) -> None:
    for batch in (False, True):
        with k.raises(ValueError, "should not be the same"):
            getattr(k.dist, what)([1], k.rank, use_batch=batch)
