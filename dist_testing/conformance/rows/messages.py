"""Sections 5 and 9 of the contract: messages from rank to rank, and objects."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows import script


@script("5.1", "send/to_itself", (1, 2))
def _send_self(k: Kit) -> None:
    with k.raises(ValueError, "destination rank"):
        k.dist.send(k.tensor(1), dst=k.rank)


@script("5.1", "recv/global_rank_of_sender", (4, 5), group="part")
def _sender(k: Kit) -> None:
    """recv() gives the sender's global rank, also where the source is named by its rank in the group."""
    group = k.group("part")
    if k.rank == 1:
        k.dist.send(k.tensor(5), dst=3, group=group)
        k.dist.send(k.tensor(6), group_dst=1, group=group)
    elif k.rank == 3:
        tensor = k.tensor(0)
        for source, value in (({"src": 1}, 5.0), ({"group_src": 0}, 6.0)):
            k.equal(k.dist.recv(tensor, **source, group=group), 1, f"what recv() returns for {source}")
            k.equal(tensor, [value], f"the message for {source}")


@script("5.2", "recv/from_anybody", (2, 3, 5))
@script("5.2", "recv/from_anybody_of_a_part", (4, 5), group="part")
def _anybody(k: Kit) -> None:
    """The first rank of the group gets one message of each other rank, and is told the global rank of each sender."""
    group, (first, *others) = k.group(k.cell.group), k.ranks
    if k.rank in others:
        k.dist.send(k.tensor(k.rank * 10), dst=first, group=group)
    elif k.rank == first:
        senders = set()
        for _ in others:
            tensor = k.tensor(0)
            sender = k.dist.recv(tensor, group=group)
            k.equal(tensor, [10.0 * sender], f"the message of rank {sender}")
            senders.add(sender)
        k.equal(senders, set(others), "the senders")


@script("5.3", "recv/tags_kept_apart", (2, 3))
def _tags(k: Kit) -> None:
    """Messages with other tags wait; the order within a tag is kept."""
    if k.rank == 0:
        works = [k.dist.isend(k.tensor(value), dst=1, tag=tag) for value, tag in ((1, 7), (2, 8), (3, 7))]
        for work in works:
            work.wait()
    elif k.rank == 1:
        tensor = k.tensor(0)
        for tag, value in ((8, 2.0), (7, 1.0), (7, 3.0)):
            k.dist.recv(tensor, src=0, tag=tag)
            k.equal(tensor, [value], f"the message with tag {tag}")


@script("5.4", "isend/tag_is_no_async_flag", (2,))
@script("5.4", "irecv/before_send", (2,))
def _at_once(k: Kit) -> None:
    """isend and irecv return for any tag before the peer calls."""
    early = 0 if k.cell.operation == "isend" else 1
    for tag in (0, 1):
        tensor = k.tensor(0 if k.rank else tag + 5)
        call, peer = (k.dist.irecv, {"src": 0}) if k.rank else (k.dist.isend, {"dst": 1})
        if k.rank != early:
            k.meet()
        work = call(tensor, **peer, tag=tag)
        if k.rank == early:
            k.meet()
        work.wait()
        k.equal(tensor, [tag + 5.0], "the message")


@script("5.4", "isend/both_directions_at_once", (2, 3))
def _both(k: Kit) -> None:
    """Two messages in flight in both directions between every pair of neighbours."""
    after, before = (k.rank + 1) % k.size, (k.rank - 1) % k.size
    sent = [k.full(10 * k.rank + n, 4097) for n in range(2)]
    got = [k.full(0, 4097) for _ in range(2)]
    works = [k.dist.irecv(tensor, src=before, tag=n) for n, tensor in enumerate(got)]
    works += [k.dist.isend(tensor, dst=after, tag=n) for n, tensor in enumerate(sent)]
    for work in reversed(works):
        work.wait()
    for number, tensor in enumerate(got):
        k.equal(tensor, k.full(10 * before + number, 4097).cpu(), f"message {number}")


@script("5.4", "isend/then_barrier", (3, 4))
def _p2p_then_collective(k: Kit) -> None:
    """Messages of two ranks do not disturb the collectives of all."""
    if k.rank == 0:
        k.dist.send(k.tensor(1), dst=1)
    elif k.rank == 1:
        k.dist.recv(k.tensor(0), src=0)
    k.dist.barrier()
    k.check_sum()


@script("5.5", "recv/other_size_writes_nothing_behind", (2,), init=True)
def _other_size(k: Kit) -> None:
    """A message that is longer than the tensor is an error or cut, and nothing behind the tensor is written."""
    buffer = k.full(-7, 64)
    with contextlib.suppress(RuntimeError, ValueError):
        if k.rank == 0:
            k.dist.send(k.full(1, 16), dst=1)
        else:
            k.dist.recv(buffer[:4], src=0)
    k.check(bool((buffer[4:] == -7.0).all()), f"behind the tensor lies {buffer[4:20].tolist()}")


@script("5.6", "P2POp/arguments", (2,))
def _op(k: Kit) -> None:
    kind, send, one = k.dist.P2POp, k.dist.isend, k.tensor(1)
    for error, *given in (
        (ValueError, k.dist.all_reduce, one, 0),
        (TypeError, send, 1, 0),
        (ValueError, send, one, 0, None, 0, 0),
        (ValueError, send, one),
    ):
        with k.raises(error, "Tensor" if error is TypeError else ""):
            kind(*given)
    text = repr(kind(send, k.tensor(1, 2), 1 - k.rank))
    for part in ("isend", str(k.rank), str(1 - k.rank), "[2]", "float32"):
        k.check(part in text, f"the text {text} lacks {part}")


@script("5.7", "batch_isend_irecv/nothing_is_refused")
@script("5.7", "batch_isend_irecv/arguments", (2,))
def _batch_arguments(k: Kit) -> None:
    if k.cell.variant == "nothing_is_refused":
        with k.raises((IndexError, ValueError)):
            k.dist.batch_isend_irecv([])
        return
    groups = (None, k.new_group([0, 1]))
    two_groups = [k.dist.P2POp(k.dist.isend, k.tensor(1), 1 - k.rank, group) for group in groups]
    for bad, pattern in (((1,), ""), (["no op"], ""), (two_groups, "group")):
        with k.raises(ValueError, pattern):
            k.dist.batch_isend_irecv(bad)


@script("5.7", "batch_isend_irecv/after_the_group_is_gone", (2,), init=True)
def _batch_outlives(k: Kit) -> None:
    """Handles of a batch may be waited for after their group was destroyed: done or an error, no crash."""
    group = k.dist.new_group([0, 1])
    got, peer = k.tensor(0), 1 - k.rank
    ops = [k.dist.P2POp(k.dist.irecv, got, peer, group), k.dist.P2POp(k.dist.isend, k.tensor(k.rank), peer, group)]
    works = k.dist.batch_isend_irecv(ops)
    for work in works:
        work.wait()
    k.dist.destroy_process_group(group)
    for work in works:
        with contextlib.suppress(RuntimeError, ValueError):
            work.wait()
    k.equal(got, [float(peer)], "what came")


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


@script({"gather_object": "9.2", "broadcast_object_list": "9.3", "scatter_object_list": "9.4"}, "{}/values", (1, 2, 3))
def _with_root(k: Kit, what: str) -> None:
    """Each rank is the root once. A scatter writes the first entry only."""
    every = _things(range(k.size))
    for root in range(k.size):
        is_root = k.rank == root
        if what == "gather_object":
            found: Any = [None] * k.size if is_root else None
            k.dist.gather_object(_thing(k.rank), found, dst=root)
            k.equal(found, every if is_root else None, f"the objects at {root}")
        elif what == "broadcast_object_list":
            things = [_thing(root), root, None] if is_root else [0, 0, 0]
            k.dist.broadcast_object_list(things, src=root)
            k.equal(things, [_thing(root), root, None], f"the objects of {root}")
        else:
            output = [None, "rest"]
            k.dist.scatter_object_list(output, every if is_root else None, src=root)
            k.equal(output, [_thing(k.rank), "rest"], f"the object of {root}")


@script("9.2", "gather_object/refuses_lists_on_others", (2, 3))
def _gather_elsewhere(k: Kit) -> None:
    """Only the root has a list, and it must have one; the refused call leaves the group usable."""
    with k.raises(ValueError, "object_gather_list|destination|dst|gather list"):
        k.dist.gather_object(1, None if k.rank == 0 else [None] * k.size, dst=0)


@script("9.3", "broadcast_object_list/root_in_the_group", (4, 5), group="part")
def _broadcast_part(k: Kit) -> None:
    """group_src is the rank in the group."""
    if k.rank % 2:
        for place in range(2):
            things = [k.rank * 10]
            k.dist.broadcast_object_list(things, group_src=place, group=k.group("part"))
            k.equal(things, [10 + 20 * place], f"the object of rank {1 + 2 * place}")


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


@script("9.4", "scatter_object_list/refusals")
def _scatter_refusals(k: Kit) -> None:
    bad: tuple[Any, ...] = ((1,), [])
    for output in bad:
        with k.raises((ValueError, RuntimeError), "list|at least"):
            k.dist.scatter_object_list(output, [1], src=0)
    with k.raises(ValueError):
        k.dist.scatter_object_list([None], None, src=0)


@script("9.5", "recv_object_list/from_anybody", (2,))
def _receive_any(k: Kit) -> None:
    """Without a source it takes a list of any rank, as its documentation says."""
    if k.rank == 0:
        k.dist.send_object_list([_thing(2)], dst=1)
        return
    found: list[Any] = [None]
    try:
        k.equal(k.dist.recv_object_list(found), 0, "the sender")
    except Exception:
        # The sender waits.
        k.dist.recv_object_list([None], src=0)
        raise
    k.equal(found, [_thing(2)], "the objects")


@script("9.5", "send_object_list/values", (2, 3))
@script("9.5", "send_object_list/batch", (2,))
def _send(k: Kit) -> None:
    things = [_thing(3), 7, "text"]
    more = {"use_batch": True} if k.cell.variant == "batch" else {}
    if k.rank == 0:
        k.dist.send_object_list(things, dst=1, **more)
    elif k.rank == 1:
        found: list[Any] = [None] * 3
        k.equal(k.dist.recv_object_list(found, src=0, **more), 0, "the sender")
        k.equal(found, things, "the objects")


@script("9.5", "{}/to_itself", (1, 2), each=("send_object_list", "recv_object_list"))
def _send_list_self(k: Kit, what: str) -> None:
    for batch in (False, True):
        with k.raises(ValueError, "should not be the same"):
            getattr(k.dist, what)([1], k.rank, use_batch=batch)
