"""Rows about time limits and absence."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.calls import right_call
from dist_testing.conformance.rows.registry import script

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


@script(
    "1.15",
    "{}/limit_of_the_group",
    (2,),
    each=(
        "all_reduce",
        "barrier",
        "all_gather",
        "broadcast",
        "gather",
        "scatter",
        "reduce",
        "recv",
        "all_to_all_single",
    ),
    fresh=True,
)
def _group_limit(k: Kit, what: str) -> None:
    _init(k, _LIMIT_S)
    if k.rank == 0:
        more = {"src": 1} if what in ("recv", "broadcast") else {}
        if what == "scatter":
            _late(k, lambda: k.dist.scatter(k.tensor(0), src=1), what)
        else:
            _late(k, lambda: right_call(k, what, **more), what)
    k.meet()


@script("2.16", "_set_pg_timeout/holds_for_the_next_call", (2,), fresh=True)
def _set_limit(k: Kit) -> None:
    _init(k, 60)
    limit = timedelta(seconds=_LIMIT_S)
    with warnings.catch_warnings(record=True, action="always") as caught:
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


@script(
    "11.2", "{}/limit_of_the_call", (2,), each=("allreduce", "broadcast", "gather", "scatter", "reduce"), fresh=True
)
def _own_limit(k: Kit, what: str) -> None:
    """The limit in the options of one call holds, although the group's is longer."""
    _init(k, 60)
    if k.rank == 0:
        tensors, others = [k.tensor(1)], [k.tensor(0) for _ in range(k.size)]
        options = getattr(k.c10d, f"{what.title()}Options")()
        options.timeout = timedelta(seconds=_LIMIT_S)
        if what in ("broadcast", "scatter"):
            options.rootRank = 1
        given = {"gather": ([others], tensors), "scatter": (tensors, [])}.get(what, (tensors,))
        _late(k, lambda: getattr(k.dist.group.WORLD, what)(*given, options), what)
    k.meet()


def _leave(k: Kit) -> None:
    """Close this rank's side of the group, and wait for the others."""
    k.dist.destroy_process_group()
    k.meet()


def _ends(k: Kit, call: Any) -> None:
    """Check that a call to a rank that has left is refused by its limit at the latest."""
    started_s = time.monotonic()
    k.refused(call)
    k.check(time.monotonic() - started_s <= _LATEST_S, "the call ended long after its limit")
    k.meet()


@script("1.16", "all_reduce/a_rank_dies", (2, 3), fresh=True)
def _dies(k: Kit) -> None:
    _init(k, 1.0)
    if k.rank == k.size - 1:
        _leave(k)
    else:
        _ends(k, lambda: k.dist.all_reduce(k.tensor(1)))


@script("1.16", "send/peer_never_connects", (2,), fresh=True)
def _lazy(k: Kit) -> None:
    """The first message to a rank that is gone ends by the limit of the group."""
    _init(k, _LIMIT_S)
    if k.rank == 1:
        _leave(k)
    else:
        _ends(k, lambda: k.dist.recv(k.tensor(1), src=1))
