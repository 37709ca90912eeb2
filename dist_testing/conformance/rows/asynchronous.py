"""When calls end: handles, memory that is used again, the coalescing manager and barriers (sections 0, 8 and 10)."""

from __future__ import annotations

import contextlib
import time
import warnings
from datetime import timedelta
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows import script

_COALESCED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
_NAMES = (
    *("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast"),
    *("gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter"),
)


def _start(k: Kit, name: str, number: int = 0) -> tuple[Any, Any]:
    """Start a call; return its handle, and the call to compare."""
    call = k.call(name, number)
    return call.run(True), call


def _check_filled(k: Kit, output: Any, value: float) -> None:
    k.synchronize()
    k.check(bool((output == value).all()), f"the output is {output[:4].tolist()}; expected {value}")


@script("0", "{}/handle_completes", (1, 2, 3), each=_NAMES)
def _completes(k: Kit, what: str) -> None:
    """wait() twice is harmless, and the handle is completed after it."""
    work, call = _start(k, what)
    work.wait()
    work.wait()
    call.compare()
    k.check(work.is_completed(), "the handle is not completed after wait()")


@script("0", "{}/call_does_not_wait", (2,), each=_NAMES)
def _does_not_wait(k: Kit, what: str) -> None:
    """The call returns before the last rank calls, and wait() waits for it."""
    is_last = k.rank == k.size - 1
    if is_last:
        k.meet()
        time.sleep(0.05)
    work, call = _start(k, what)
    if not is_last:
        k.meet()
    work.wait()
    call.compare()


@script("0", "{}/waits_in_other_order", (3,), each=_NAMES)
def _other_order(k: Kit, what: str) -> None:
    started = [_start(k, what, number) for number in range(6)]
    for index in (3, 0, 5, 1, 4, 2):
        work, call = started[index]
        work.wait()
        call.compare()


@script("0", "{}/future_then", (2,), each=("all_reduce", "broadcast", "all_gather", "barrier"))
def _future(k: Kit, what: str) -> None:
    """The future of a handle is done, and calls what is added to it."""
    work, call = _start(k, what)
    called: list[bool] = []
    then = work.get_future().then(lambda _: called.append(True))
    work.wait()
    then.wait()
    k.equal(called, [True], "the calls of then()")
    call.compare()


@script("0", "all_reduce/input_released_in_flight", (2, 3))
def _released(k: Kit) -> None:
    """The handle keeps tensors alive whose last reference is gone, while their memory would be used again."""
    sums = []
    for number in range(20):
        tensor = k.full(k.rank + number, 4099)
        sums.append((k.dist.all_reduce(tensor, async_op=True), tensor[1:]))
        del tensor
        k.full(-1, 4099)
    for number, (work, view) in enumerate(sums):
        work.wait()
        _check_filled(k, view, sum(rank + number for rank in range(k.size)))


@script("0", "send_recv/input_released_in_flight", (2,))
def _released_send(k: Kit) -> None:
    """isend keeps the memory of a tensor that the caller has dropped."""
    if k.rank == 0:
        works = [k.dist.isend(k.full(number, 60_001), dst=1) for number in range(6)]
        for _ in range(6):
            k.full(-1, 60_001)
        k.meet()
        for work in works:
            work.wait()
    else:
        k.meet()
        for number in range(6):
            tensor = k.full(-2, 60_001)
            k.dist.recv(tensor, src=0)
            _check_filled(k, tensor, number)


@script("0", "all_reduce/wait_is_the_end", (2, 3, 5))
def _wait_is_the_end(k: Kit) -> None:
    """A large result is complete when wait() returns, again and again."""
    for number in range(5):
        tensor = k.full(k.rank + number, 200_003)
        k.dist.all_reduce(tensor, async_op=True).wait()
        _check_filled(k, tensor, sum(rank + number for rank in range(k.size)))


@script("0", "all_reduce/failed_call_sets_exception", (2,), init=0.6)
def _exception(k: Kit) -> None:
    """A call that fails has an error on wait(), and does not count as a success."""
    k.dist.barrier()
    if k.rank == 0:
        work = k.dist.all_reduce(k.tensor(1), async_op=True)
        k.refused(work.wait)
        k.check(work.is_completed(), "the failed call is not completed")
        k.check(not work.is_success(), "the failed call counts as a success")
        k.check(work.exception() is not None, "the failed call has no exception")
    k.meet()


@script(
    "8.1",
    "_coalescing_manager/{}",
    (1, 2, 3),
    each=[f"{name}_{mode}" for name in _COALESCED for mode in ("sync", "async")],
)
def _values(k: Kit, what: str) -> None:
    """Several calls in one block."""
    name, _, mode = what.rpartition("_")
    calls = [k.call(name, number) for number in range(3)]
    with k.c10d._coalescing_manager(async_ops=mode == "async") as manager:
        for call in calls:
            call.run(False)
    if mode == "async":
        manager.wait()
    for call in calls:
        call.compare()


@script("8.1", "_coalescing_manager/empty_block", (2,))
def _empty(k: Kit) -> None:
    with k.c10d._coalescing_manager():
        pass


@script("8.1", "_coalescing_manager/on_a_part", (4,), group="part")
def _on_part(k: Kit) -> None:
    group = k.group("part")
    if k.rank in k.ranks:
        tensor = k.tensor(k.rank)
        with k.c10d._coalescing_manager(group):
            k.dist.all_reduce(tensor, group=group)
        k.equal(tensor, [4.0], "the sum")


@script("8.1", "_coalescing_manager/with_device", (1, 2, 3))
def _with_device(k: Kit) -> None:
    """With a device the backend itself collects the calls between start and end."""
    tensors = [k.tensor(k.rank + number) for number in range(2)]
    with k.c10d._coalescing_manager(device=k.device, async_ops=True) as manager:
        for tensor in tensors:
            k.dist.all_reduce(tensor, async_op=True)
    manager.wait()
    for number, tensor in enumerate(tensors):
        k.equal(tensor, [float(sum(rank + number for rank in range(k.size)))], f"sum {number}")


@script("8.2", "_coalescing_manager/illegal_work")
def _illegal(k: Kit) -> None:
    kind = k.need("_IllegalWork")
    for name in ("wait", "result", "is_success", "exception", "synchronize", "source_rank"):
        with k.raises(ValueError, "Illegal to call"):
            getattr(kind(), name)()


@script("8.2", "_coalescing_manager/handle_of_a_call_inside")
def _inside(k: Kit) -> None:
    """A call with `async_op=True` gives a handle that may not be used; the block waits for the call."""
    for name in _COALESCED:
        call = k.call(name)
        with k.c10d._coalescing_manager():
            work = call.run(True)
            for method in ("wait", "result", "synchronize"):
                with k.raises(ValueError, "Illegal to call"):
                    getattr(work, method)()
        call.compare()


@script("8.2", "_coalescing_manager/block_in_a_block", init=True)
def _nested(k: Kit) -> None:
    with k.raises(ValueError, "non-empty"), k.c10d._coalescing_manager():
        k.dist.all_reduce(k.tensor(1))
        with k.c10d._coalescing_manager():
            pass


@script("8.3", "_coalescing_manager/after_a_refused_device", (2,), init=True)
def _refused_device(k: Kit) -> None:
    """If the backend cannot collect calls by a device, later calls are not collected either."""
    refused = contextlib.suppress(RuntimeError, ValueError, NotImplementedError)
    with refused, k.c10d._coalescing_manager(device=k.device):
        pass
    k.check_sum()


@script("8.3", "_coalescing_manager/body_that_raises", init=True)
def _raises(k: Kit) -> None:
    with k.raises(KeyError), k.c10d._coalescing_manager():
        raise KeyError("user code")
    k.dist.all_reduce(k.tensor(3), op=k.dist.ReduceOp.SUM)
    k.equal(len(k.c10d._world.pg_coalesce_state), 0, "the groups whose calls are still collected")


@script("8.4", "_coalescing_manager/mixed_kinds", init=True)
def _mixed(k: Kit) -> None:
    output = k.tensor(0)
    try:
        with k.c10d._coalescing_manager():
            k.dist.all_reduce(k.tensor(5))
            k.dist.all_gather_into_tensor(output, k.tensor(7))
    except RuntimeError:
        return
    k.equal(output, [7.0], "the gathered tensor")


@script("8.4", "_coalescing_manager/mixed_reductions", (2,), init=True)
def _mixed_ops(k: Kit) -> None:
    """Never silently the first operation for both."""
    first, second = k.tensor(k.rank + 1), k.tensor(k.rank + 1)
    try:
        with k.c10d._coalescing_manager():
            k.dist.all_reduce(first)
            k.dist.all_reduce(second, op=k.dist.ReduceOp.MAX)
    except (RuntimeError, ValueError, AssertionError):
        return
    k.equal(second, [2.0], "the largest")


@script("10.1", "barrier/waits_for_all", (1, 2, 3, 5))
@script("10.1", "barrier/of_a_part", (4, 5), group="part")
@script("10.1", "barrier/async", (2, 3))
@script("10.1", "barrier/device_ids", (1, 2))
def _barrier(k: Kit) -> None:
    """No rank leaves before all members have come: a counter of the store is the witness."""
    # `device_ids` has the number of the device; on the CPU it changes nothing.
    more = {"device_ids": [k.device.index or 0]} if k.cell.variant == "device_ids" else {}
    is_async, group = k.cell.variant == "async", k.group(k.cell.group)
    for number in range(3) if k.rank in k.ranks else ():
        key = k.key(f"arrived/{number}")
        if k.rank == k.size - 1:
            time.sleep(0.03)
        k.world.store.add(key, 1)
        work = k.dist.barrier(group=group, async_op=is_async, **more)
        if is_async:
            work.wait()
        k.equal(k.world.store.add(key, 0), len(k.ranks), "the ranks that had come when the barrier opened")


@script("10.2", "monitored_barrier/all_come", (1, 2, 3))
def _all_come(k: Kit) -> None:
    k.equal(k.dist.monitored_barrier(), None, "the result")


@script("10.2", "monitored_barrier/names_missing_ranks", (3, 4))
def _names(k: Kit) -> None:
    """Rank 0 names the ranks that did not come: all with wait_all_ranks, else the first."""
    # A backend that torch does not offer it for refuses it here, on every rank.
    k.dist.monitored_barrier()
    for waits in (False, True):
        group = k.new_group()
        if k.rank == 0:
            pattern = ", ".join(map(str, range(1, k.size))) if waits else "[Rr]ank 1"
            with k.raises(RuntimeError, pattern):
                k.dist.monitored_barrier(group, timeout=timedelta(seconds=0.4), wait_all_ranks=waits)
        k.meet()


@script("10.2", "monitored_barrier/timeouts", (2,))
def _timeouts(k: Kit) -> None:
    with warnings.catch_warnings(record=True, action="always") as caught:
        k.dist.monitored_barrier(timeout=5.0)
    k.check(bool(caught), "no warning for a limit that is a number")
    with k.raises(TypeError, "Expected timeout"):
        k.dist.monitored_barrier(timeout="5")
    k.dist.monitored_barrier(timeout=None)
