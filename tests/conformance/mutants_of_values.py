"""Bugs of layouts and reductions, numbers 1 to 16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.conformance.mutant_tools import (
    after,
    copied_options,
    flat,
    lose_tail,
    plant,
    tensors_of,
    wrap,
)


def _argument_flat(method: str, position: int) -> None:
    """Make a method take a tensor, or each tensor of a list, as if it were contiguous."""

    def mutant(call: Any, group: Any, *given: Any, **more: Any) -> Any:
        changed = list(given)
        changed[position] = flat(changed[position])
        return call(group, *changed, **more)

    wrap(method, mutant)


@plant(1)
def _broadcast_ignores_strides() -> None:
    _argument_flat("broadcast", 0)


@plant(2)
def _scatter_ignores_strides_of_inputs() -> None:
    _argument_flat("scatter", 1)


@plant(3)
def _gather_ignores_strides_of_inputs() -> None:
    _argument_flat("gather", 1)


@plant(4)
def _gather_ignores_strides_of_outputs() -> None:
    _argument_flat("gather", 0)


@plant(5)
def _reduce_scatter_tensor_ignores_strides() -> None:
    _argument_flat("_reduce_scatter_base", 1)
    _argument_flat("reduce_scatter_single", 1)


@plant(6)
def _scatter_ignores_offset() -> None:
    def mutant(call: Any, group: Any, outputs: Any, inputs: Any, *given: Any, **more: Any) -> Any:
        moved = [[tensor.as_strided(tensor.size(), tensor.stride(), 0) for tensor in tensors_of(inputs)]]
        return call(group, outputs, moved if tensors_of(inputs) else inputs, *given, **more)

    wrap("scatter", mutant)


@plant(7)
def _result_goes_to_a_copy_of_a_strided_output() -> None:
    def mutant(call: Any, group: Any, output: Any, *given: Any, **more: Any) -> Any:
        return call(group, output.contiguous(), *given, **more)

    wrap("_allgather_base", mutant)
    wrap("all_gather_single", mutant)


@plant(8)
def _reduce_clobbers_others() -> None:
    def mutant(call: Any, group: Any, tensors: Any, opts: Any, *given: Any, **more: Any) -> Any:
        def clobber() -> None:
            if group.rank() != opts.rootRank:
                tensors[0].add_(1)

        return after(call(group, tensors, opts, *given, **more), clobber)

    wrap("reduce", mutant)


def _other_op(names: tuple[str, ...], condition: Callable[[Any], bool] = lambda _: True) -> None:
    """Make all_reduce sum in place of some operations."""

    def mutant(call: Any, group: Any, tensors: Any, opts: Any = None, *given: Any, **more: Any) -> Any:
        if opts is not None and _op_name(opts) in names and condition(tensors[0]):
            opts = copied_options(opts, reduceOp=dist.ReduceOp(dist.ReduceOp.SUM))
        return call(group, tensors, opts, *given, **more)

    wrap("allreduce", mutant)


def _op_name(opts: Any) -> str:
    reduction = getattr(opts, "reduceOp", None)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"):
        if reduction == getattr(dist.ReduceOp, name):
            return name
    return ""


@plant(9)
def _average_is_a_sum() -> None:
    _other_op(("AVG",))


def _average_by(change: Callable[[Any, int], None]) -> None:
    """Make an average a sum with a change at the end."""

    def mutant(call: Any, group: Any, tensors: Any, opts: Any = None, *given: Any, **more: Any) -> Any:
        if opts is None or _op_name(opts) != "AVG":
            return call(group, tensors, opts, *given, **more)
        opts = copied_options(opts, reduceOp=dist.ReduceOp(dist.ReduceOp.SUM))
        return after(call(group, tensors, opts, *given, **more), lambda: change(tensors[0], group.size()))

    wrap("allreduce", mutant)


@plant(10)
def _average_divides_by_elements() -> None:
    _average_by(lambda tensor, _: tensor.copy_(tensor / max(1, tensor.numel())))


@plant(11)
def _average_of_integers_is_rounded_up() -> None:
    _average_by(
        lambda tensor, size: tensor.copy_(
            tensor / size if tensor.is_floating_point() or tensor.is_complex() else (tensor + size - 1) // size
        )
    )


@plant(12)
def _bitwise_operations_sum() -> None:
    _other_op(("BAND", "BOR", "BXOR"))


@plant(13)
def _average_is_a_sum_above_a_size() -> None:
    _other_op(("AVG",), lambda tensor: tensor.numel() > 1000)


@plant(14)
def _tail_is_lost_in_a_world_of_one() -> None:
    lose_tail(lambda _, size: size == 1, 4)


@plant(15)
def _reduce_drops_the_factor() -> None:
    def mutant(call: Any, group: Any, tensors: Any, opts: Any, *given: Any, **more: Any) -> Any:
        if _op_name(opts) == "PREMUL_SUM":
            opts = copied_options(opts, reduceOp=dist.ReduceOp(dist.ReduceOp.SUM))
        return call(group, tensors, opts, *given, **more)

    wrap("reduce", mutant)


@plant(16)
def _sum_of_bools_is_a_number() -> None:
    def mutant(call: Any, group: Any, tensors: Any, opts: Any = None, *given: Any, **more: Any) -> Any:
        tensor = tensors[0]
        if tensor.dtype is not torch.bool or not tensor.is_contiguous():
            return call(group, tensors, opts, *given, **more)
        return call(group, [tensor.view(torch.uint8)], opts, *given, **more)

    wrap("allreduce", mutant)
