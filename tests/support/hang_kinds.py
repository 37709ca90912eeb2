"""Kinds of hangs as users write them: what each rank does, what is said of it, and which rank it comes from.

Every kind needs a world of four ranks with a default group. Tests and `tools/bench/hangs.py` run the same kinds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import _functional_collectives as functional

from dist_testing import World
from tests.support import hang_bodies

WORLD_SIZE = 4


@dataclass(frozen=True, slots=True)
class HangKind:
    """One way in which a world locks up."""

    body: Callable[[World], object]  # what each rank does
    said: str  # part of the verdict's reason
    culprit: int | None = None  # the rank that the hang comes from; None where no single rank is to blame
    why_not: str = ""  # why the hang cannot be proven, so that the deadline decides; "" if it can
    suspects: tuple[int, ...] = ()  # ranks of which one is to blame, where the ledgers do not show which
    # How ranks are made (`tests.support.hang_runs.ISOLATIONS`), to why the case ends in another way there.
    otherwise: Mapping[str, str] = field(default_factory=dict)


def _ones(count: int = 3) -> torch.Tensor:
    return torch.ones(count)


def _all_but(rank: int, call: Callable[[World], object]) -> Callable[[World], None]:
    """What each rank does if one of them leaves out a call."""

    def body(world: World) -> None:
        if world.rank != rank:
            call(world)

    return body


def _swallows_an_error(world: World) -> None:
    with contextlib.suppress(ValueError):
        if world.rank == 2:
            raise ValueError("planted")
        dist.all_reduce(_ones())


def _meets_after_an_error(world: World) -> None:
    try:
        if world.rank == 2:
            raise ValueError("planted")
        dist.all_reduce(_ones())
    finally:
        dist.barrier()


def _calls_another(world: World) -> None:
    dist.all_reduce(_ones())
    if world.rank == 3:
        dist.barrier()
    else:
        dist.all_reduce(_ones())


def _repeats(rank: int, more: int) -> Callable[[World], None]:
    def body(world: World) -> None:
        for _ in range(4 + (more if world.rank == rank else 0)):
            dist.all_reduce(_ones())

    return body


def _swaps_two_groups(world: World) -> None:
    groups = [dist.new_group(), dist.new_group()]
    for group in reversed(groups) if world.rank == 0 else groups:
        dist.all_reduce(_ones(), group=group)


def _swaps_group_and_default(world: World) -> None:
    group = dist.new_group([0, 1])
    if world.rank == 0:
        dist.barrier(group=group)
    dist.barrier()
    if world.rank == 1:
        dist.barrier(group=group)


def _forgets_a_subgroup(world: World) -> None:
    pair = dist.new_group([1, 2])
    if world.rank == 1:
        dist.broadcast(_ones(), 1, group=pair)
    dist.barrier()


def _broadcasts_from_another_root(world: World) -> None:
    dist.broadcast(_ones(), src=0 if world.rank == 0 else 1)


def _coalesces(world: World) -> None:
    if world.rank == 3:
        dist.all_reduce_coalesced([_ones(), _ones()])
    else:
        dist.all_reduce(_ones())
    dist.barrier()


def _sends_with_another_tag(world: World) -> None:
    if world.rank == 0:
        dist.send(_ones(), 1, tag=5)
    elif world.rank == 1:
        dist.recv(_ones(), 0, tag=6)


def _all_receive_in_a_ring(world: World) -> None:
    dist.recv(_ones(), (world.rank + 1) % world.size)


def _all_send_in_pairs(world: World) -> None:
    dist.send(_ones(), world.rank ^ 1)
    dist.recv(_ones(), world.rank ^ 1)


def _one(rank: int, call: Callable[[World], object]) -> Callable[[World], None]:
    """What each rank does if only one of them makes a call that others must answer."""

    def body(world: World) -> None:
        if world.rank == rank:
            call(world)

    return body


def _receives_by_a_variable(world: World) -> None:
    work = dist.irecv(_ones(), src=world.rank + 1)
    assert work is not None
    work.wait()


def _exchanges(world: World) -> None:
    peer = world.rank ^ 1
    operations = [dist.P2POp(dist.isend, _ones(), peer), dist.P2POp(dist.irecv, _ones(), peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _waits_for_an_async_call(_: World) -> None:
    work = dist.all_reduce(_ones(), async_op=True)
    assert work is not None
    work.wait()


def _waits_for_several(_: World) -> None:
    works = [dist.all_reduce(_ones(), async_op=True) for _ in range(3)]
    for work in works:
        assert work is not None
        work.wait()


def _receives_instead_of_an_async_call(world: World) -> None:
    if world.rank == 2:
        dist.recv(_ones(), 0)
    handles = [dist.broadcast(_ones(), 1, async_op=True) for _ in range(2)]
    for work in handles:
        assert work is not None
        work.wait()


def _reduces_functionally(_: World) -> None:
    group = dist.distributed_c10d._get_default_group()
    functional.wait_tensor(functional.all_reduce(_ones(), "sum", group))  # type: ignore[no-untyped-call]


def _makes_the_default_group(world: World) -> None:
    # A rank can still be connecting its first group to one that is ready.
    world.barrier()
    dist.destroy_process_group()
    if world.rank != 1:
        store = PrefixStore("again", world.store)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)


def _waits_for_a_key(world: World) -> None:
    world.store.get("never set")


def _waits_for_keys(world: World) -> None:
    world.store.wait(["never", "set"])


def _objects(world: World) -> list[Any]:
    return [None] * world.size


def _gathers(world: World) -> None:
    dist.gather(_ones(), [_ones() for _ in range(world.size)] if world.rank == 0 else None)


def _scatters(world: World) -> None:
    dist.scatter(_ones(), [_ones() for _ in range(world.size)] if world.rank == 0 else None)


def _all_gathers(world: World) -> None:
    dist.all_gather([_ones() for _ in range(world.size)], _ones())


def _reduces_in_its_own_limit(world: World) -> None:
    group = dist.new_group(timeout=timedelta(seconds=3))
    if world.rank != 3:
        dist.all_reduce(_ones(), group=group)


_OWN_LINE = "only the line of the test shows what it waits for"
_CYCLE = "wait for each other: rank 0 in"


def _left_out(rank: int, where: str) -> str:
    others = ", ".join(str(other) for other in range(WORLD_SIZE) if other != rank)
    return f"rank {rank} ended the test; ranks {others} wait for it in {where}"


def _pipeline() -> HangKind:
    """What torch's schedule calls first, and so what its stages wait for, depends on the version."""
    body = _all_but(3, hang_bodies.runs_pipeline)
    if torch.__version__ < "2.12":
        return HangKind(body, "in wait of a send or a receive", why_not="it waits for sends through variables")
    # torch 2.15 calls all_reduce on all stages before the first send.
    waits = "rank 2 waits for it in send to rank 3" if torch.__version__ < "2.15" else "ranks 0, 1, 2 wait for it"
    return HangKind(body, f"rank 3 ended the test; {waits}", 3)


KINDS: dict[str, HangKind] = {
    "early return": HangKind(_all_but(3, lambda _: dist.all_reduce(_ones())), _left_out(3, "all_reduce #1"), 3),
    "exception swallowed": HangKind(_swallows_an_error, _left_out(2, "all_reduce #1"), 2),
    "barrier in finally": HangKind(_meets_after_an_error, "call #1 of the default group: rank 2 calls barrier", 2),
    "one batch less": HangKind(_repeats(3, -1), _left_out(3, "all_reduce #4"), 3),
    "one batch more": HangKind(
        _repeats(3, 1), "ranks 0, 1, 2 ended the test; rank 3 waits for them in all_reduce #5", 3
    ),
    "other collective": HangKind(_calls_another, "call #2 of the default group: rank 3 calls barrier", 3),
    "other order of two groups": HangKind(
        _swaps_two_groups, "wait for each other: rank 0 in all_reduce #1 of group", 0
    ),
    "group before default": HangKind(
        _swaps_group_and_default, "ranks 0, 1 wait for each other: rank 0 in barrier #1", suspects=(0, 1)
    ),
    "sub-group forgotten": HangKind(
        _forgets_a_subgroup, "ranks 1, 2 wait for each other: rank 1 in broadcast #1", suspects=(1, 2)
    ),
    "other root": HangKind(_broadcasts_from_another_root, "rank 0 calls broadcast of [[3]] Float from rank 0", 0),
    "coalesced against plain": HangKind(_coalesces, "rank 3 calls all_reduce of [[3], [3]] Float", 3),
    "missing barrier": HangKind(_all_but(1, lambda _: dist.barrier()), _left_out(1, "barrier #1"), 1),
    "missing world.barrier": HangKind(_all_but(1, World.barrier), _left_out(1, "world.barrier"), 1),
    "missing monitored_barrier": HangKind(
        _all_but(1, lambda _: dist.monitored_barrier()), _left_out(1, "monitored_barrier"), 1
    ),
    "missing new_group": HangKind(_all_but(1, lambda _: dist.new_group()), _left_out(1, "new_group"), 1),
    "missing init_process_group": HangKind(
        _makes_the_default_group,
        _left_out(1, "init_process_group"),
        1,
        otherwise={"pool": "a test must not leave a worker pool without its default group"},
    ),
    "missing device mesh": HangKind(_all_but(3, hang_bodies.makes_a_mesh), "rank 3 ended the test; ranks", 3),
    "missing all_gather": HangKind(_all_but(3, _all_gathers), _left_out(3, "all_gather #1"), 3),
    "missing gather": HangKind(_all_but(3, _gathers), "rank 3 ended the test; rank", 3),
    "missing root of scatter": HangKind(_all_but(0, _scatters), _left_out(0, "scatter #1"), 0),
    "missing root of broadcast": HangKind(
        _all_but(0, lambda _: dist.broadcast(_ones(), 0)), _left_out(0, "broadcast #1"), 0
    ),
    "missing reduce_scatter": HangKind(
        _all_but(2, lambda _: dist.reduce_scatter_tensor(_ones(1), _ones(4))), _left_out(2, "reduce_scatter_tensor"), 2
    ),
    "missing all_to_all": HangKind(
        _all_but(2, lambda _: dist.all_to_all_single(_ones(4), _ones(4))), _left_out(2, "all_to_all_single"), 2
    ),
    "missing all_gather_object": HangKind(
        _all_but(0, lambda world: dist.all_gather_object(_objects(world), world.rank)),
        _left_out(0, "all_gather_object (all_gather) #1"),
        0,
    ),
    "missing broadcast_object_list": HangKind(
        _all_but(0, lambda _: dist.broadcast_object_list([1])), _left_out(0, "broadcast_object_list (broadcast) #1"), 0
    ),
    "receive without send": HangKind(
        _one(0, lambda _: dist.recv(_ones(), 1)), "rank 1 ended the test; rank 0 waits for it in recv from rank 1", 1
    ),
    "send without receive": HangKind(
        _one(0, lambda _: dist.send(_ones(), 1)), "rank 1 ended the test; rank 0 waits for it in send to rank 1", 1
    ),
    "receive from any rank": HangKind(
        _one(0, lambda _: dist.recv(_ones())),
        "no rank can go on: rank 0 in recv from any rank",
    ),
    "objects without send": HangKind(
        _one(0, lambda _: dist.recv_object_list([None], 1)), "rank 1 ended the test; rank 0 waits for it in recv", 1
    ),
    "ring of receives": HangKind(_all_receive_in_a_ring, f"ranks 0, 1, 2, 3 {_CYCLE} recv from rank 1"),
    "pairs of sends": HangKind(_all_send_in_pairs, f"ranks 0, 1 {_CYCLE} send to rank 1"),
    "other tag": HangKind(_sends_with_another_tag, f"ranks 0, 1 {_CYCLE} send to rank 1", suspects=(0, 1)),
    "irecv in a variable": HangKind(_one(0, _receives_by_a_variable), "ranks 1, 2, 3 did not come", None, _OWN_LINE),
    "batch without a peer": HangKind(_all_but(1, _exchanges), "ranks 1, 2, 3 did not come", None, _OWN_LINE),
    "async call": HangKind(_all_but(2, _waits_for_an_async_call), _left_out(2, "all_reduce #1"), 2),
    "several async calls": HangKind(_all_but(2, _waits_for_several), _left_out(2, "all_reduce #1"), 2),
    "async call against recv": HangKind(
        _receives_instead_of_an_async_call,
        "ranks 0, 2 wait for each other: rank 0 in broadcast #1",
        suspects=(0, 2),
    ),
    "functional collective": HangKind(_all_but(2, _reduces_functionally), _left_out(2, "all_reduce #1"), 2),
    "store key never set": HangKind(_one(1, _waits_for_a_key), "ranks 0, 2, 3 did not come", None, _OWN_LINE),
    "store keys never set": HangKind(_one(1, _waits_for_keys), "ranks 0, 2, 3 did not come", None, _OWN_LINE),
    "DTensor redistributed": HangKind(_all_but(3, hang_bodies.redistributes), _left_out(3, "all_gather"), 3),
    "full_tensor on rank 0": HangKind(hang_bodies.prints_on_rank_0, "call #1 of the default group: rank 0 calls", 0),
    "DDP made on some ranks": HangKind(_all_but(3, hang_bodies.makes_ddp), _left_out(3, "DistributedDataParallel"), 3),
    "DDP, unused branch": HangKind(hang_bodies.leaves_a_branch, _left_out(3, "backward"), 3),
    "DDP, one batch less": HangKind(hang_bodies.has_fewer_batches, _left_out(3, "backward"), 3),
    "FSDP2, one forward less": HangKind(_all_but(3, hang_bodies.runs_fsdp), "rank 3 ended the test; ranks 0, 1, 2", 3),
    "pipeline without a stage": _pipeline(),
    "checkpoint on some ranks": HangKind(_all_but(3, hang_bodies.saves), "rank 3 ended the test; ranks 0, 1, 2", 3),
    "limit of the group": HangKind(
        _reduces_in_its_own_limit, "rank 3", 3, "the test chose the limit, and the wait ends by itself"
    ),
    "thread that calls": HangKind(
        hang_bodies.calls_in_a_thread, "rank 1", 1, "another Python thread of the rank can go on"
    ),
    "endless sleep": HangKind(hang_bodies.sleeps, "rank 1", 1, "a rank that sleeps can wake up"),
    "endless loop": HangKind(hang_bodies.loops, "rank 1", 1, "a rank that computes can end"),
    "file lock": HangKind(hang_bodies.waits_for_a_lock, "rank 1", 1, "the ledger does not know locks of files"),
    "child process": HangKind(hang_bodies.waits_for_a_child, "rank 1", 1, "a child process can end, and the wait too"),
    "stopped rank": HangKind(hang_bodies.is_stopped, "rank 1", 1, "a stopped rank tells nothing"),
}
