"""When calls end: handles of asynchronous calls, memory that is used again, barriers (section 10 of the contract)."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.registry import script

_NAMES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
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
    last = k.size - 1
    if k.rank == last:
        k.meet()
        time.sleep(0.05)
    work, call = _start(k, what)
    if k.rank != last:
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
        view = tensor[1:]
        sums.append((k.dist.all_reduce(tensor, async_op=True), view))
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


@script("0", "all_reduce/failed_call_sets_exception", (2,), fresh=True)
def _exception(k: Kit) -> None:
    """A call that fails has an error on wait(), and does not count as a success."""
    k.init(0.6)
    k.dist.barrier()
    if k.rank == 0:
        work = k.dist.all_reduce(k.tensor(1), async_op=True)
        k.refused(work.wait)
        k.check(work.is_completed(), "the failed call is not completed")
        k.check(not work.is_success(), "the failed call counts as a success")
        k.check(work.exception() is not None, "the failed call has no exception")
    k.meet()


def _witnessed(k: Kit, members: int, barrier: Any) -> None:
    """No rank leaves before all have come: a counter of the store is the witness."""
    for number in range(3):
        key = k.key(f"arrived/{number}")
        if k.rank == k.size - 1:
            time.sleep(0.03)
        k.world.store.add(key, 1)
        barrier()
        k.equal(k.world.store.add(key, 0), members, "the ranks that had come when the barrier opened")


@script("10.1", "barrier/of_a_part", (4, 5), group="part")
@script("10.1", "barrier/waits_for_all", (1, 2, 3, 5))
def _barrier(k: Kit) -> None:
    group = k.group(k.cell.group)
    if k.rank in k.ranks:
        _witnessed(k, len(k.ranks), lambda: k.dist.barrier(group=group))


@script("10.1", "barrier/async", (2, 3))
def _async(k: Kit) -> None:
    _witnessed(k, k.size, lambda: k.dist.barrier(async_op=True).wait())


@script("10.1", "barrier/device_ids", (1, 2))
def _device_ids(k: Kit) -> None:
    """`device_ids` has the number of the device; on the CPU it changes nothing."""
    _witnessed(k, k.size, lambda: k.dist.barrier(device_ids=[k.device.index or 0]))


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
    barrier = k.dist.monitored_barrier
    with warnings.catch_warnings(record=True, action="always") as caught:
        barrier(timeout=5.0)
    k.check(bool(caught), "no warning for a limit that is a number")
    with k.raises(TypeError, "Expected timeout"):
        barrier(timeout="5")
    barrier(timeout=None)
