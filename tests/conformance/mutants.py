"""Plants public bugs in a process group that is right: one bug per run, chosen by the variable KIT_MUTANT.

The group is the library's own, whose ranks are threads. A bug is planted when a process makes its first group, so the
runner, which imports this module, too, stays right. Without the variable nothing changes: that is the plain wrapper.

Here are the bugs of layouts, reductions, dtypes, sizes and rank counts, numbers 1 to 31.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

from dist_testing.threaded.group import ThreadedGroup
from tests.conformance import mutants_of_calls  # noqa: F401  # fills the table
from tests.conformance.mutant_tools import (
    PLANTS,
    after,
    change,
    copied_options,
    die,
    plant,
    spoil,
    tensors_of,
    wrap,
)

__all__ = ["PLANTS"]

_ALL_GATHERS = ("_allgather_base", "all_gather_single")
_ALL_TO_ALLS = ("alltoall_base", "all_to_all_single")
_original_init = ThreadedGroup.__init__
_planting = threading.Lock()


def _init(self: Any, *given: Any, **more: Any) -> None:
    """Plant the chosen bug before the first group. The runner imports this module, too, and makes no group."""
    with _planting:
        number = int(os.environ.get("KIT_MUTANT") or 0)
        if number in PLANTS:
            PLANTS.pop(number)()
    _original_init(self, *given, **more)


ThreadedGroup.__init__ = _init  # type: ignore[method-assign]

# Number of a bug -> methods, each with the place of an argument: its tensors are taken as if they were contiguous.
_IGNORED_STRIDES = {
    1: [("broadcast", 0)],
    2: [("scatter", 1)],
    3: [("gather", 1)],
    4: [("gather", 0)],
    5: [("_reduce_scatter_base", 1), ("reduce_scatter_single", 1)],
}


def _ignore_strides(places: list[tuple[str, int]]) -> None:
    for method, place in places:

        def mutant(group: Any, call: Any, *given: Any, place: int = place, **more: Any) -> Any:
            return call(*given[:place], _flat(given[place]), *given[place + 1 :], **more)

        wrap(method, mutant)


def _flat(given: Any) -> Any:
    """Return tensors over the same memory, as if the given ones were contiguous."""
    if isinstance(given, list):
        return [_flat(one) for one in given]
    steps = torch.empty(given.shape, device="meta").stride()
    return given.as_strided(given.shape, steps, given.storage_offset())


for _number, _places in _IGNORED_STRIDES.items():
    PLANTS[_number] = functools.partial(_ignore_strides, _places)


@change(6, "scatter")
def _scatter_ignores_offset(group: Any, outputs: Any, inputs: Any, *rest: Any, **_: Any) -> Any:
    moved = [[tensor.as_strided(tensor.size(), tensor.stride(), 0) for tensor in tensors_of(inputs)]]
    return (outputs, moved if tensors_of(inputs) else inputs, *rest)


@change(7, *_ALL_GATHERS)
def _result_goes_to_a_copy_of_a_strided_output(group: Any, output: Any, *rest: Any, **_: Any) -> Any:
    return (output.contiguous(), *rest)


@spoil(8, "reduce")
def _reduce_clobbers_others(group: Any, tensors: Any, opts: Any, *_: Any) -> None:
    if group.rank() != opts.rootRank:
        tensors[0].add_(1)


def _is(opts: Any, *names: str) -> bool:
    """Return whether the options name one of these reductions."""
    return hasattr(opts, "reduceOp") and any(opts.reduceOp == getattr(dist.ReduceOp, name) for name in names)


def _summing(opts: Any) -> Any:
    return copied_options(opts, reduceOp=dist.ReduceOp(dist.ReduceOp.SUM))


@change(9, "allreduce")
def _average_is_a_sum(group: Any, tensors: Any, opts: Any = None, **_: Any) -> Any:
    return (tensors, _summing(opts)) if _is(opts, "AVG") else None


@plant(10, "allreduce")
def _average_divides_by_elements(group: Any, call: Any, tensors: Any, opts: Any = None, **more: Any) -> Any:
    if not _is(opts, "AVG"):
        return call(tensors, opts, **more)
    tensor = tensors[0]
    return after(call(tensors, _summing(opts), **more), lambda: tensor.copy_(tensor / max(1, tensor.numel())))


@plant(11, "allreduce")
def _average_of_integers_is_rounded_up(group: Any, call: Any, tensors: Any, opts: Any = None, **more: Any) -> Any:
    if not _is(opts, "AVG"):
        return call(tensors, opts, **more)

    def divide() -> None:
        tensor, size = tensors[0], group.size()
        is_exact = tensor.is_floating_point() or tensor.is_complex()
        tensor.copy_(tensor / size if is_exact else (tensor + size - 1) // size)

    return after(call(tensors, _summing(opts), **more), divide)


@change(12, "allreduce")
def _bitwise_operations_sum(group: Any, tensors: Any, opts: Any = None, **_: Any) -> Any:
    return (tensors, _summing(opts)) if _is(opts, "BAND", "BOR", "BXOR") else None


@change(13, "allreduce")
def _average_is_a_sum_above_a_size(group: Any, tensors: Any, opts: Any = None, **_: Any) -> Any:
    return (tensors, _summing(opts)) if _is(opts, "AVG") and tensors[0].numel() > 1000 else None


def _lose_tail(tensors: Any) -> None:
    """Lose the elements of the last block of four that is not full."""
    for tensor in tensors:
        if tensor.dim() == 1 and tensor.numel() % 4:
            tensor[-(tensor.numel() % 4) :].zero_()


@spoil(14, "allreduce")
def _tail_is_lost_in_a_world_of_one(group: Any, tensors: Any, *_: Any) -> None:
    if group.size() == 1:
        _lose_tail(tensors)


@change(15, "reduce")
def _reduce_drops_the_factor(group: Any, tensors: Any, opts: Any, *rest: Any, **_: Any) -> Any:
    return (tensors, _summing(opts), *rest) if _is(opts, "PREMUL_SUM") else None


@change(16, "allreduce")
def _sum_of_bools_is_a_number(group: Any, tensors: Any, *rest: Any, **_: Any) -> Any:
    if tensors[0].dtype is not torch.bool or not tensors[0].is_contiguous():
        return None
    return ([tensors[0].view(torch.uint8)], *rest)


@change(17, "allgather")
def _bools_are_refused(group: Any, outputs: Any, inputs: Any, *_: Any, **__: Any) -> None:
    if tensors_of(inputs)[0].dtype is torch.bool:
        raise RuntimeError("Input tensor data type is not supported: bool")


@spoil(18, "allgather")
def _bfloat16_has_no_size(group: Any, outputs: Any, *_: Any) -> None:
    every = tensors_of(outputs)
    if every[0].dtype is torch.bfloat16:
        for output in every[1:]:
            output.copy_(every[0])


@change(19, "reduce_scatter")
def _root_gives_zeros(group: Any, outputs: Any, inputs: Any, *rest: Any, **_: Any) -> Any:
    if group.rank():
        return None
    return (outputs, [[torch.zeros_like(tensor) for tensor in tensors_of(inputs)]], *rest)


@change(20, "gather")
def _list_on_another_rank_is_refused(group: Any, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> None:
    root = more.get("root", getattr(opts, "rootRank", 0))
    if group.rank() != root and isinstance(outputs, list):
        raise RuntimeError("requires empty output on non-root")


@change(21, *_ALL_TO_ALLS)
def _sizes_are_dropped(group: Any, output: Any, source: Any, gets: Any = None, sends: Any = None, *rest: Any) -> Any:
    if output.dim() and source.dim() and not len(output) % group.size() and not len(source) % group.size():
        return (output, source, [], [], *rest)
    return None


@spoil(22, "allreduce")
def _last_tile_is_zero(group: Any, tensors: Any, *_: Any) -> None:
    _lose_tail(tensor for tensor in tensors if tensor.numel() > 4)


@spoil(23, *_ALL_GATHERS)
def _offsets_have_eight_bits(group: Any, output: Any, *_: Any) -> None:
    if output.numel() > 256:
        index = torch.arange(output.numel()) % 256
        output.copy_(output.reshape(-1)[index].reshape(output.shape))


@change(24, "allreduce")
def _nothing_is_divided_by(group: Any, tensors: Any, *_: Any, **__: Any) -> None:
    if not tensors_of(tensors)[0].numel():
        die("SIGFPE")


@plant(25, *_ALL_TO_ALLS)
def _who_sends_nothing_stays_away(group: Any, call: Any, output: Any, source: Any, *given: Any) -> Any:
    if source.numel() or not output.numel():
        return call(output, source, *given)
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result([output])
    return _create_work_from_future(future)


@change(26, *_ALL_TO_ALLS)
def _zero_sizes_are_refused(group: Any, output: Any, source: Any, gets: Any = None, sends: Any = None, *_: Any) -> None:
    if 0 in (*(gets or []), *(sends or [])):
        raise RuntimeError("all_to_all: split sizes must be positive")


@change(27, "scatter")
def _first_of_an_empty_list(group: Any, outputs: Any, inputs: Any, *_: Any, **__: Any) -> None:
    if not tensors_of(inputs):
        die("SIGSEGV")


@spoil(28, "alltoall")
def _zeros_with_more_than_two_ranks(group: Any, outputs: Any, *_: Any) -> None:
    for output in outputs if group.size() > 2 else ():
        output.zero_()


@change(29, "reduce")
def _group_of_one_fails(group: Any, *_: Any, **__: Any) -> None:
    if group.size() == 1:
        raise RuntimeError("no peer")


@spoil(30, "allgather")
def _one_slot_is_lost(group: Any, outputs: Any, *_: Any) -> None:
    if group.size() & (group.size() - 1):
        tensors_of(outputs)[-1].zero_()


@spoil(31, "allgather")
def _ranks_wrap(group: Any, outputs: Any, *_: Any) -> None:
    every = tensors_of(outputs)
    for index in range(4, len(every)):
        if every[index].shape == every[index % 4].shape:
            every[index].copy_(every[index % 4])
