"""Rows about time limits and absence."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from dist_testing.conformance.rows.calls import CALLS
from dist_testing.conformance.rows.registry import script

if TYPE_CHECKING:
    from dist_testing.conformance.kit import Kit

# Limit of the calls, and the latest end of one. Seconds.
_LIMIT_S = 0.5
_LATEST_S = 3.5


def _late(k: Kit, call: Any, what: str) -> None:
    """Check that a call ends by its limit: not at once, and not much later."""
    started_s = time.monotonic()
    text = k.refused(call)
    seconds = time.monotonic() - started_s
    k.check(seconds >= 0.6 * _LIMIT_S, f"{what} failed before its limit: {text}")
    k.check(seconds <= _LATEST_S, f"{what} ended long after its limit: {text}")


def _init(k: Kit, seconds: float) -> None:
    k.init(seconds)
    k.dist.barrier()


def _group_limit(name: str, k: Kit) -> None:
    """A rank that stays away ends the call of the others by the limit of the group."""
    _init(k, _LIMIT_S)
    if k.rank == 0:
        more = {"src": 1} if name in ("recv", "irecv", "broadcast", "scatter") else {}
        if name == "scatter":
            _late(k, lambda: k.dist.scatter(k.tensor(0), src=1), name)
        else:
            _late(k, lambda: CALLS[name](k, **more), name)
    k.meet()


for _name in (
    "all_reduce",
    "barrier",
    "all_gather",
    "broadcast",
    "gather",
    "scatter",
    "reduce",
    "recv",
    "all_to_all_single",
):
    script("1.15", f"{_name}/limit_of_the_group", (2,), fresh=True)(partial(_group_limit, _name))


@script("2.16", "_set_pg_timeout/holds_for_the_next_call", (2,), fresh=True)
def _set_limit(k: Kit) -> None:
    _init(k, 60)
    limit = timedelta(seconds=_LIMIT_S)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        k.c10d._set_pg_timeout(limit)
    if caught:
        # c10d passes the limit on to some backends only, and warns for others, whose groups have a method for it.
        k.dist.group.WORLD.set_timeout(limit)
    if k.rank == 0:
        _late(k, lambda: k.dist.all_reduce(k.tensor(1)), "all_reduce")
    k.meet()


@script("1.15", "wait/own_limit", (2,), fresh=True)
def _wait_limit(k: Kit) -> None:
    """The limit of wait() itself."""
    _init(k, 60)
    if k.rank == 0:
        work = k.dist.irecv(k.tensor(0), src=1)
        _late(k, lambda: work.wait(timedelta(seconds=_LIMIT_S)), "wait()")
    k.meet()


def _own_limit(name: str, k: Kit) -> None:
    """The limit in the options of one call holds, although the group's is longer."""
    _init(k, 60)
    group = k.dist.group.WORLD
    if k.rank == 0:
        tensor, others = k.tensor(1), [k.tensor(0) for _ in range(k.size)]
        kinds = {
            "allreduce": "AllreduceOptions",
            "broadcast": "BroadcastOptions",
            "gather": "GatherOptions",
            "scatter": "ScatterOptions",
            "reduce": "ReduceOptions",
        }
        options = getattr(k.c10d, kinds[name])()
        options.timeout = timedelta(seconds=_LIMIT_S)
        if name in ("broadcast", "scatter"):
            options.rootRank = 1
        if name == "gather":
            options.rootRank = 0
        given: dict[str, Any] = {
            "allreduce": lambda: group.allreduce([tensor], options),
            "broadcast": lambda: group.broadcast([tensor], options),
            "gather": lambda: group.gather([others], [tensor], options),
            "scatter": lambda: group.scatter([tensor], [], options),
            "reduce": lambda: group.reduce([tensor], options),
        }
        _late(k, given[name], name)
    k.meet()


for _name in ("allreduce", "broadcast", "gather", "scatter", "reduce"):
    script("11.2", f"{_name}/limit_of_the_call", (2,), fresh=True)(partial(_own_limit, _name))


@script("1.16", "all_reduce/a_rank_dies", (2, 3), fresh=True)
def _dies(k: Kit) -> None:
    """The last rank closes its side of the group; the others' call ends by the limit at the latest."""
    _init(k, 1.0)
    if k.rank == k.size - 1:
        k.dist.destroy_process_group()
        k.meet()
        return
    started_s = time.monotonic()
    k.refused(lambda: k.dist.all_reduce(k.tensor(1)))
    k.check(time.monotonic() - started_s <= _LATEST_S, "the call ended long after its limit")
    k.meet()


@script("1.16", "send/peer_never_connects", (2,), fresh=True)
def _lazy(k: Kit) -> None:
    """The first message to a rank that is gone ends by the limit of the group."""
    _init(k, _LIMIT_S)
    if k.rank == 1:
        k.dist.destroy_process_group()
        k.meet()
        return
    started_s = time.monotonic()
    k.refused(lambda: k.dist.recv(k.tensor(1), src=1))
    k.check(time.monotonic() - started_s <= _LATEST_S, "the call ended long after its limit")
    k.meet()
