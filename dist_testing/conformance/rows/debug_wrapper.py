"""Section 11 of the contract: the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares the calls of all ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.registry import script


@contextmanager
def _wrapped(k: Kit, limit_s: float = 3.0) -> Iterator[None]:
    """Make the default group under the wrapper, and show that it works."""
    k.dist.set_debug_level(k.dist.DebugLevel.DETAIL)
    try:
        k.init(limit_s)
        k.check_sum()
        yield
    finally:
        k.dist.set_debug_level(k.dist.DebugLevel.OFF)


@script("3.8", "new_group/debug_wrapper", (2,), fresh=True)
def _debug(k: Kit) -> None:
    with _wrapped(k, 2.0), k.raises(RuntimeError):
        if k.rank == 0:
            k.dist.all_reduce(k.tensor(1))
        else:
            k.dist.broadcast(k.tensor(1), src=0)


@script("11.6", "debug_wrapper/other_{}", (2, 3), each=("operation", "shape", "dimensions", "dtype"), fresh=True)
def _differs(k: Kit, what: str) -> None:
    """A call that differs on the last rank is an error on every rank, at the call and not at wait()."""
    tensors: dict[str, Any] = {
        "shape": k.tensor(1, 2),
        "dimensions": k.tensor(1).reshape(1, 1),
        "dtype": k.tensor(1, dtype="int64"),
    }
    is_last = k.rank == k.size - 1
    with _wrapped(k), k.raises(RuntimeError):
        if is_last and what == "operation":
            k.dist.broadcast(k.tensor(1), src=0, async_op=True)
        else:
            k.dist.all_reduce(tensors[what] if is_last else k.tensor(1), async_op=True)


@script("11.6", "debug_wrapper/after_many_calls", (2,), fresh=True)
def _after_many(k: Kit) -> None:
    """A difference is found although hundreds of calls are in flight."""
    with _wrapped(k, 10.0):
        works = [k.dist.all_reduce(k.tensor(1), async_op=True) for _ in range(300)]
        with k.raises(RuntimeError):
            k.dist.all_reduce(k.tensor(*range(k.rank + 1)), async_op=True)
        for work in works:
            work.wait()


@script("11.6", "debug_wrapper/right_program", (1, 2, 3), fresh=True)
def _right(k: Kit) -> None:
    with _wrapped(k):
        k.check_sum()
        whole = k.full(0, k.size)
        k.dist.all_gather_into_tensor(whole, k.tensor(k.rank))
        k.equal(whole, [float(rank) for rank in range(k.size)], "the gathered tensor")
        k.dist.barrier()


@script("11.6", "debug_wrapper/names_absent_rank", (3,), fresh=True)
def _absent(k: Kit) -> None:
    """A rank that does not come is named, by the limit of the group."""
    with _wrapped(k, 1.0):
        if k.rank == 0:
            started_s = time.monotonic()
            with k.raises(RuntimeError, r"[Rr]anks?:? \D*2\b"):
                k.dist.all_reduce(k.tensor(1))
            k.check(time.monotonic() - started_s <= 4, "the error came long after the limit")
        elif k.rank == 1:
            k.refused(lambda: k.dist.all_reduce(k.tensor(1)))
        k.meet()
