"""The async axis of the contract: handles, their order, and memory that is used again."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from dist_testing.conformance.rows.registry import script

if TYPE_CHECKING:
    from dist_testing.conformance.kit import Kit

_N = 513


def _full(k: Kit, value: float, count: int = _N) -> Any:
    return k.torch.full((count,), float(value), device=k.device)


def _start(name: str, k: Kit) -> tuple[Any, Any, float]:
    """Start a call; return its handle, an output tensor, and the value that fills the output."""
    mine, total = _full(k, k.rank + 1), float(k.size * (k.size + 1) // 2)
    output = _full(k, -1)
    dist = k.dist
    match name:
        case "all_reduce":
            return dist.all_reduce(mine, async_op=True), mine, total
        case "broadcast":
            return dist.broadcast(mine, src=0, async_op=True), mine, 1.0
        case "reduce":
            return dist.reduce(mine, dst=0, async_op=True), mine if k.rank == 0 else _full(k, total), total
        case "all_gather":
            outputs = [_full(k, -1) for _ in range(k.size)]
            return dist.all_gather(outputs, mine, async_op=True), outputs[-1], float(k.size)
        case "all_gather_into_tensor":
            whole = _full(k, -1, _N * k.size)
            return dist.all_gather_into_tensor(whole, mine, async_op=True), whole[-_N:], float(k.size)
        case "gather":
            outputs = [_full(k, -1) for _ in range(k.size)]
            work = dist.gather(mine, outputs if k.rank == 0 else None, dst=0, async_op=True)
            return work, outputs[-1] if k.rank == 0 else _full(k, k.size), float(k.size)
        case "scatter":
            inputs = [_full(k, 7 + rank) for rank in range(k.size)] if k.rank == 0 else None
            return dist.scatter(output, inputs, src=0, async_op=True), output, 7.0 + k.rank
        case "reduce_scatter":
            inputs = [_full(k, rank + 1) for rank in range(k.size)]
            return dist.reduce_scatter(output, inputs, async_op=True), output, float(k.size * (k.rank + 1))
        case "reduce_scatter_tensor":
            whole = k.torch.cat([_full(k, rank + 1) for rank in range(k.size)])
            return dist.reduce_scatter_tensor(output, whole, async_op=True), output, float(k.size * (k.rank + 1))
        case "all_to_all_single":
            whole = k.torch.cat([_full(k, 10 * k.rank + rank) for rank in range(k.size)])
            outputs = _full(k, -1, _N * k.size)
            work = dist.all_to_all_single(outputs, whole, async_op=True)
            return work, outputs[-_N:], float(10 * (k.size - 1) + k.rank)
        case "all_to_all":
            inputs = [_full(k, 10 * k.rank + rank) for rank in range(k.size)]
            outputs = [_full(k, -1) for _ in range(k.size)]
            return dist.all_to_all(outputs, inputs, async_op=True), outputs[-1], float(10 * (k.size - 1) + k.rank)
        case _:
            return dist.barrier(async_op=True), _full(k, 0), 0.0


_CALLS = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)


def _check_filled(k: Kit, output: Any, value: float) -> None:
    if k.device.type != "cpu":
        k.torch.get_device_module(k.device.type).synchronize(k.device)
    k.check(bool((output == value).all()), f"the output is {output[:4].tolist()}; expected {value}")


def _completes(name: str, k: Kit) -> None:
    """wait() twice is harmless, and the handle is completed after it."""
    work, output, value = _start(name, k)
    work.wait()
    work.wait()
    _check_filled(k, output, value)
    k.check(work.is_completed(), "the handle is not completed after wait()")


def _does_not_wait(name: str, k: Kit) -> None:
    """The call returns before the last rank calls, and wait() waits for it."""
    last = k.size - 1
    if k.rank == last:
        k.meet()
        time.sleep(0.05)
    work, output, value = _start(name, k)
    if k.rank != last:
        k.meet()
    work.wait()
    _check_filled(k, output, value)


def _other_order(name: str, k: Kit) -> None:
    """Many handles, waited for in another order than issued."""
    started = [_start(name, k) for _ in range(6)]
    for index in (3, 0, 5, 1, 4, 2):
        work, output, value = started[index]
        work.wait()
        _check_filled(k, output, value)


def _future(name: str, k: Kit) -> None:
    """The future of a handle is done, and calls what is added to it."""
    work, output, value = _start(name, k)
    called: list[bool] = []
    then = work.get_future().then(lambda _: called.append(True))
    work.wait()
    then.wait()
    k.equal(called, [True], "the calls of then()")
    _check_filled(k, output, value)


for _name in _CALLS:
    script("0", f"{_name}/handle_completes", (1, 2, 3))(partial(_completes, _name))
    script("0", f"{_name}/call_does_not_wait", (2,))(partial(_does_not_wait, _name))
    script("0", f"{_name}/waits_in_other_order", (3,))(partial(_other_order, _name))
for _name in ("all_reduce", "broadcast", "all_gather", "barrier"):
    script("0", f"{_name}/future_then", (2,))(partial(_future, _name))


@script("0", "all_reduce/input_released_in_flight", (2, 3))
def _released(k: Kit) -> None:
    """The handle keeps tensors alive whose last reference is gone, while their memory would be used again."""
    sums = []
    for number in range(20):
        tensor = _full(k, k.rank + number, 4099)
        view = tensor[1:]
        sums.append((k.dist.all_reduce(tensor, async_op=True), view))
        del tensor
        k.torch.full((4099,), -1.0, device=k.device)
    for number, (work, view) in enumerate(sums):
        work.wait()
        _check_filled(k, view, sum(rank + number for rank in range(k.size)))


@script("0", "send_recv/input_released_in_flight", (2,))
def _released_send(k: Kit) -> None:
    """isend keeps the memory of a tensor that the caller has dropped."""
    if k.rank == 0:
        works = [k.dist.isend(_full(k, number, 60_001), dst=1) for number in range(6)]
        for _ in range(6):
            _full(k, -1, 60_001)
        k.meet()
        for work in works:
            work.wait()
    else:
        k.meet()
        for number in range(6):
            tensor = _full(k, -2, 60_001)
            k.dist.recv(tensor, src=0)
            _check_filled(k, tensor, number)


@script("0", "all_reduce/wait_is_the_end", (2, 3, 5))
def _wait_is_the_end(k: Kit) -> None:
    """A large result is complete when wait() returns, again and again."""
    for number in range(5):
        tensor = _full(k, k.rank + number, 200_003)
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
    k.meet()
