"""Section 8 of the contract: the coalescing manager."""

from __future__ import annotations

import contextlib

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.registry import script


@script(
    "8.1",
    "_coalescing_manager/{}",
    (1, 2, 3),
    each=[
        f"{name}_{mode}"
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
        for mode in ("sync", "async")
    ],
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
    if k.rank % 2:
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
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
        call = k.call(name)
        with k.c10d._coalescing_manager():
            work = call.run(True)
            for method in ("wait", "result", "synchronize"):
                with k.raises(ValueError, "Illegal to call"):
                    getattr(work, method)()
        call.compare()


@script("8.2", "_coalescing_manager/block_in_a_block", fresh=True)
def _nested(k: Kit) -> None:
    k.init()
    with k.raises(ValueError, "non-empty"), k.c10d._coalescing_manager():
        k.dist.all_reduce(k.tensor(1))
        with k.c10d._coalescing_manager():
            pass


@script("8.3", "_coalescing_manager/after_a_refused_device", (2,), fresh=True)
def _refused_device(k: Kit) -> None:
    """If the backend cannot collect calls by a device, later calls are not collected either."""
    k.init()
    refused = contextlib.suppress(RuntimeError, ValueError, NotImplementedError)
    with refused, k.c10d._coalescing_manager(device=k.device):
        pass
    k.check_sum()


@script("8.3", "_coalescing_manager/body_that_raises", fresh=True)
def _raises(k: Kit) -> None:
    k.init()
    with k.raises(KeyError), k.c10d._coalescing_manager():
        raise KeyError("user code")
    tensor = k.tensor(3)
    k.dist.all_reduce(tensor, op=k.dist.ReduceOp.SUM)
    k.equal(len(k.c10d._world.pg_coalesce_state), 0, "the groups whose calls are still collected")


@script("8.4", "_coalescing_manager/mixed_kinds", fresh=True)
def _mixed(k: Kit) -> None:
    k.init()
    output = k.tensor(0)
    try:
        with k.c10d._coalescing_manager():
            k.dist.all_reduce(k.tensor(5))
            k.dist.all_gather_into_tensor(output, k.tensor(7))
    except RuntimeError:
        return
    k.equal(output, [7.0], "the gathered tensor")


@script("8.4", "_coalescing_manager/mixed_reductions", (2,), fresh=True)
def _mixed_ops(k: Kit) -> None:
    """Never silently the first operation for both."""
    k.init()
    first, second = k.tensor(k.rank + 1), k.tensor(k.rank + 1)
    try:
        with k.c10d._coalescing_manager():
            k.dist.all_reduce(first)
            k.dist.all_reduce(second, op=k.dist.ReduceOp.MAX)
    except (RuntimeError, ValueError, AssertionError):
        return
    k.equal(second, [2.0], "the largest")
