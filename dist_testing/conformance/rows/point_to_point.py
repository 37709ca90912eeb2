"""Section 5 of the contract: point to point."""

from __future__ import annotations

import contextlib

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.registry import script


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
        k.equal(k.dist.recv(tensor, src=1, group=group), 1, "what recv() returns")
        k.equal(tensor, [5.0], "the first message")
        k.equal(k.dist.recv(tensor, group_src=0, group=group), 1, "what recv() returns by rank in the group")
        k.equal(tensor, [6.0], "the second message")


@script("5.2", "recv/from_anybody", (2, 3, 5))
def _anybody(k: Kit) -> None:
    """Rank 0 gets one message of each other rank, and is told the sender of each."""
    if k.rank:
        k.dist.send(k.tensor(k.rank * 10), dst=0)
        return
    senders = set()
    for _ in range(k.size - 1):
        tensor = k.tensor(0)
        sender = k.dist.recv(tensor)
        k.equal(tensor, [10.0 * sender], f"the message of rank {sender}")
        senders.add(sender)
    k.equal(senders, set(range(1, k.size)), "the senders")


@script("5.2", "recv/from_anybody_of_a_part", (4, 5), group="part")
def _anybody_of_part(k: Kit) -> None:
    """The sender is told by its global rank, and by its rank in the group not at all."""
    group = k.group("part")
    if k.rank == 3:
        k.dist.send(k.tensor(7), dst=1, group=group)
    elif k.rank == 1:
        tensor = k.tensor(0)
        k.equal(k.dist.recv(tensor, group=group), 3, "what recv() returns")
        k.equal(tensor, [7.0], "the message")


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
def _tag_zero(k: Kit) -> None:
    """isend and irecv return at once for any tag, before the peer calls."""
    for tag in (0, 1):
        if k.rank == 0:
            out = k.tensor(tag + 5)
            work = k.dist.isend(out, dst=1, tag=tag)
            k.meet()
            work.wait()
        else:
            tensor = k.tensor(0)
            k.meet()
            k.dist.recv(tensor, src=0, tag=tag)
            k.equal(tensor, [tag + 5.0], "the message")


@script("5.4", "irecv/before_send", (2,))
def _recv_first(k: Kit) -> None:
    if k.rank == 1:
        tensor = k.tensor(0)
        work = k.dist.irecv(tensor, src=0)
        k.meet()
        work.wait()
        k.equal(tensor, [4.0], "the message")
    else:
        k.meet()
        k.dist.send(k.tensor(4), dst=1)


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


@script("5.5", "recv/other_size_writes_nothing_behind", (2,), fresh=True)
def _other_size(k: Kit) -> None:
    """A message that is longer than the tensor is an error or cut, and nothing behind the tensor is written."""
    k.init()
    buffer = k.full(-7, 64)
    with contextlib.suppress(RuntimeError, ValueError):
        if k.rank == 0:
            k.dist.send(k.full(1, 16), dst=1)
        else:
            k.dist.recv(buffer[:4], src=0)
    if k.rank:
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


@script("5.7", "batch_isend_irecv/arguments", (2,))
def _batch_arguments(k: Kit) -> None:
    with k.raises(ValueError):
        k.dist.batch_isend_irecv((1,))
    with k.raises(ValueError):
        k.dist.batch_isend_irecv(["no op"])
    other = k.new_group([0, 1])
    ops = [k.dist.P2POp(k.dist.isend, k.tensor(1), 1 - k.rank, group) for group in (None, other)]
    with k.raises(ValueError, "group"):
        k.dist.batch_isend_irecv(ops)


@script("5.7", "batch_isend_irecv/nothing_is_refused")
def _batch_empty(k: Kit) -> None:
    with k.raises((IndexError, ValueError)):
        k.dist.batch_isend_irecv([])


@script("5.7", "batch_isend_irecv/after_the_group_is_gone", (2,), fresh=True)
def _batch_outlives(k: Kit) -> None:
    """Handles of a batch may be waited for after their group was destroyed: done or an error, no crash."""
    k.init()
    group = k.dist.new_group([0, 1])
    got = k.tensor(0)
    peer = 1 - k.rank
    ops = [k.dist.P2POp(k.dist.irecv, got, peer, group), k.dist.P2POp(k.dist.isend, k.tensor(k.rank), peer, group)]
    works = k.dist.batch_isend_irecv(ops)
    for work in works:
        work.wait()
    k.dist.destroy_process_group(group)
    for work in works:
        with contextlib.suppress(RuntimeError, ValueError):
            work.wait()
    k.equal(got, [float(peer)], "what came")
