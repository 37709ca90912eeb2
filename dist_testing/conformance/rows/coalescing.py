"""Section 8 of the contract: the coalescing manager."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from dist_testing.conformance.rows.registry import script

if TYPE_CHECKING:
    from dist_testing.conformance.kit import Kit


def _block(k: Kit, is_async: bool, group: Any = None) -> Any:
    return k.c10d._coalescing_manager(group=group, async_ops=is_async)


def _values(name: str, is_async: bool, k: Kit) -> None:
    """Several calls in one block."""
    total = k.size * (k.size + 1) // 2
    pairs: list[tuple[Any, list[float]]] = []
    with _block(k, is_async) as manager:
        for number in range(3):
            if name == "all_reduce":
                tensor = k.tensor(k.rank + 1, number)
                k.dist.all_reduce(tensor)
                pairs.append((tensor, [float(total), float(number * k.size)]))
            elif name == "all_gather_into_tensor":
                output = k.torch.zeros(2 * k.size, device=k.device)
                k.dist.all_gather_into_tensor(output, k.tensor(k.rank, number))
                pairs.append((output, [float(v) for rank in range(k.size) for v in (rank, number)]))
            else:
                output = k.torch.zeros(1, device=k.device)
                k.dist.reduce_scatter_tensor(output, k.torch.arange(float(k.size), device=k.device) + number)
                pairs.append((output, [float(k.size * (k.rank + number))]))
    if is_async:
        manager.wait()
    for tensor, expected in pairs:
        k.equal(tensor, expected, "the result")


for _name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
    for _mode in (False, True):
        script("8.1", f"_coalescing_manager/{_name}_{'async' if _mode else 'sync'}", (1, 2, 3))(
            partial(_values, _name, _mode)
        )


@script("8.1", "_coalescing_manager/empty_block", (2,))
def _empty(k: Kit) -> None:
    with _block(k, False):
        pass


@script("8.1", "_coalescing_manager/on_a_part", (4,), group="part")
def _on_part(k: Kit) -> None:
    group = k.group("part")
    if k.rank % 2:
        tensor = k.tensor(k.rank)
        with _block(k, False, group):
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
    """An asynchronous call inside gives a handle on which nothing may be called."""
    kind = k.need("_IllegalWork")
    for name in ("wait", "result", "is_success", "exception", "synchronize", "source_rank"):
        with k.raises(ValueError, "Illegal to call"):
            getattr(kind(), name)()


@script("8.3", "_coalescing_manager/body_that_raises", fresh=True)
def _raises(k: Kit) -> None:
    """After a body that raised, the next call must do its work."""
    k.init()
    with k.raises(KeyError), _block(k, False):
        raise KeyError("user code")
    tensor = k.tensor(3)
    k.dist.all_reduce(tensor, op=k.dist.ReduceOp.SUM)
    k.equal(len(k.c10d._world.pg_coalesce_state), 0, "the groups whose calls are still collected")


@script("8.4", "_coalescing_manager/mixed_kinds", fresh=True)
def _mixed(k: Kit) -> None:
    """Two kinds of calls in one block are refused or right."""
    k.init()
    tensor, output = k.tensor(5), k.tensor(0)

    def block() -> None:
        with _block(k, False):
            k.dist.all_reduce(tensor)
            k.dist.all_gather_into_tensor(output, k.tensor(7))

    try:
        block()
    except RuntimeError:
        return
    k.equal(output, [7.0], "the gathered tensor")


@script("8.4", "_coalescing_manager/mixed_reductions", (2,), fresh=True)
def _mixed_ops(k: Kit) -> None:
    """Two reduce operations in one block are refused or right, never silently the first."""
    k.init()
    first, second = k.tensor(k.rank + 1), k.tensor(k.rank + 1)
    try:
        with _block(k, False):
            k.dist.all_reduce(first)
            k.dist.all_reduce(second, op=k.dist.ReduceOp.MAX)
    except (RuntimeError, ValueError, AssertionError):
        return
    k.equal(second, [2.0], "the largest")
