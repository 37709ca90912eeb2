"""Section 11 of the contract: methods of groups, the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL, functional collectives.

The wrapper compares the calls of all ranks.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from dist_testing.conformance.kit import AbsentError, Kit
from dist_testing.conformance.rows import script
from dist_testing.core.ground.environment import environment


def _dist2() -> Any:
    """Return the module, which torch has up to 2.13."""
    try:
        return importlib.import_module("torch.distributed._dist2")
    except ModuleNotFoundError as error:
        raise AbsentError(str(error)) from error


@script("11.1", "dist2/current_process_group", (2,))
def _current(k: Kit) -> None:
    dist2, group = _dist2(), k.dist.group.WORLD
    k.equal(dist2.current_process_group(), None, "the group before")
    with dist2.process_group(group):
        k.check(dist2.current_process_group() is group, "another group inside")
        with k.raises(KeyError), dist2.process_group(k.new_group()):
            raise KeyError("user code")
        k.check(dist2.current_process_group() is group, "another group after an error")
    k.equal(dist2.current_process_group(), None, "the group after")


@script("11.1", "dist2/unknown_backend", fresh=True)
def _unknown(k: Kit) -> None:
    dist2 = _dist2()
    with environment({"RANK": "0", "WORLD_SIZE": "1"}), k.raises((ValueError, RuntimeError, KeyError)):
        dist2.new_group("unheard_of", timedelta(seconds=5), "cpu")


# Method to the function that it is like.
_METHODS = {
    "allreduce": "all_reduce",
    "allreduce_op": "all_reduce",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "alltoall_base": "all_to_all_single",
}


@script("11.2", "method/{}", (2, 3), each=_METHODS)
def _method(k: Kit, what: str) -> None:
    """A method with plain tensors and a limit; a list that is needed on the root is empty elsewhere."""
    root = "last" if what == "broadcast" else "first"
    call = k.call(_METHODS[what], op="max" if what == "allreduce_op" else "sum", root=root)
    given = [[] if one is None else one for one in call.arguments]
    more: dict[str, Any] = {"root": call.root} if what in ("broadcast", "gather", "scatter", "reduce") else {}
    if what in ("allreduce_op", "reduce"):
        more["op"] = call.op
    if what not in ("allreduce_op", "scatter"):
        more["timeout"] = timedelta(seconds=4)
    method = getattr(k.dist.group.WORLD, what.removesuffix("_op"))
    method(*(reversed(given) if what == "gather" else given), **more).wait()
    call.compare()


@script("11.3", "method/split_group", (4,))
def _split(k: Kit) -> None:
    """Every rank makes every split; None elsewhere; the limit and the name are the split's."""
    kept = []
    for number, ranks in enumerate(([0, 2], [1, 3])):
        name = k.key(f"split{number}")
        made = k.dist.group.WORLD.split_group(ranks, timeout=timedelta(seconds=9), group_name=name)
        k.equal(made is None, k.rank not in ranks, "whether there is no group")
        if made is not None:
            k.equal((made.rank(), made.size()), (ranks.index(k.rank), 2), "rank and size")
            tensor = k.tensor(k.rank + 1)
            made.allreduce(tensor).wait()
            k.equal(tensor, [float(sum(rank + 1 for rank in ranks))], "the sum")
            kept.append(made)
        k.meet()
    # A group that nothing refers to is gone, while its other rank may still be in the call.
    k.meet()
    kept.clear()


@script("11.4", "method/merge_remote_group", (2,), init=True)
def _merge(k: Kit) -> None:
    """Two groups of one rank become a group of two."""
    mine: Any = None
    for rank in range(2):
        made = k.dist.group.WORLD.split_group([rank], group_name=f"alone{rank}")
        mine = mine if made is None else made
        k.meet()
    k.check(mine is not None, "no group of this rank alone")
    shared = k.dist.PrefixStore("merged", k.world.store)
    merged = mine.merge_remote_group(shared, 2, timedelta(seconds=4), group_name="merged")
    k.equal((merged.size(), merged.group_name), (2, "merged"), "size and name")
    tensor = k.tensor(k.rank + 1)
    merged.allreduce([tensor]).wait()
    k.equal(tensor, [3.0], "the sum")
    # As above.
    k.meet()


@script("11.5", "method/shutdown_twice", init=True)
def _shutdown(k: Kit) -> None:
    group = k.dist.group.WORLD
    group.shutdown()
    group.shutdown()


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


def _functional_module() -> Any:
    return importlib.import_module("torch.distributed._functional_collectives")


@script("11.7", "functional/{}", (2, 3), each=("all_reduce", "all_gather_tensor", "reduce_scatter_tensor", "broadcast"))
def _functional(k: Kit, what: str) -> None:
    """By group and by its name."""
    functional, mine = _functional_module(), k.tensor(k.rank + 1, 2)
    calls: dict[str, tuple[tuple[Any, ...], list[float], str]] = {
        "all_reduce": ((mine, "sum"), [k.size * (k.size + 1) / 2, 2.0 * k.size], "the sum"),
        "all_gather_tensor": ((mine, 0), [v for rank in range(k.size) for v in (rank + 1.0, 2.0)], "the tensors"),
        "reduce_scatter_tensor": ((k.arange(k.size), "sum", 0), [float(k.size * k.rank)], "the part"),
        "broadcast": ((mine, k.size - 1), [float(k.size), 2.0], "the root's tensor"),
    }
    given, expected, text = calls[what]
    for group in (k.dist.group.WORLD, k.dist.group.WORLD.group_name):
        k.equal(functional.wait_tensor(getattr(functional, what)(*given, group)), expected, text)
        k.equal(mine, [k.rank + 1.0, 2.0], "the input")


@script("11.7", "functional/backward", (2, 3))
def _backward(k: Kit) -> None:
    functional, group = _functional_module(), k.dist.group.WORLD
    mine = k.tensor(k.rank + 1).requires_grad_()
    functional.all_gather_tensor_autograd(mine, 0, group).sum().backward()
    k.equal(mine.grad, [float(k.size)], "the gradient of all_gather_tensor")
    whole = k.torch.ones(k.size, device=k.device, requires_grad=True)
    (functional.reduce_scatter_tensor_autograd(whole, "sum", 0, group) * (k.rank + 1)).sum().backward()
    k.equal(whole.grad, [rank + 1.0 for rank in range(k.size)], "the gradient of reduce_scatter_tensor")


@script("11.7", "nn.functional/gradient_in_a_part", (4,), group="part")
def _gradient(k: Kit) -> None:
    """The gradient of the source of a broadcast in a part is the sum of the members'."""
    functional: Any = importlib.import_module("torch.distributed.nn.functional")
    if k.rank in k.ranks:
        source = k.tensor(k.rank).requires_grad_()
        functional.broadcast(source, src=1, group=k.group("part")).sum().backward()
        k.equal(source.grad, [2.0 if k.rank == 1 else 0.0], "the gradient")
