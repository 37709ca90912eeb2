"""Bugs of dtypes, sizes and rank counts, numbers 17 to 31."""

from __future__ import annotations

from typing import Any

import torch

from tests.conformance.mutant_tools import (
    after,
    die,
    handle,
    lose_tail,
    plant,
    tensors_of,
    wrap,
    wrap_all_to_all,
)


@plant(17)
def _bools_are_refused() -> None:
    def mutant(call: Any, group: Any, outputs: Any, inputs: Any, *given: Any, **more: Any) -> Any:
        if tensors_of(inputs)[0].dtype is torch.bool:
            raise RuntimeError("Input tensor data type is not supported: bool")
        return call(group, outputs, inputs, *given, **more)

    wrap("allgather", mutant)


@plant(18)
def _bfloat16_has_no_size() -> None:
    def mutant(call: Any, group: Any, outputs: Any, inputs: Any, *given: Any, **more: Any) -> Any:
        def overlay() -> None:
            every = tensors_of(outputs)
            if every[0].dtype is torch.bfloat16:
                for output in every[1:]:
                    output.copy_(every[0])

        return after(call(group, outputs, inputs, *given, **more), overlay)

    wrap("allgather", mutant)


@plant(19)
def _root_gives_zeros() -> None:
    def mutant(call: Any, group: Any, outputs: Any, inputs: Any, *given: Any, **more: Any) -> Any:
        if group.rank() == 0:
            inputs = [[torch.zeros_like(tensor) for tensor in tensors_of(inputs)]]
        return call(group, outputs, inputs, *given, **more)

    wrap("reduce_scatter", mutant)


@plant(20)
def _list_on_another_rank_is_refused() -> None:
    def mutant(call: Any, group: Any, outputs: Any, inputs: Any, *given: Any, **more: Any) -> Any:
        root = more.get("root", getattr(given[0], "rootRank", 0) if given else 0)
        if group.rank() != root and isinstance(outputs, list):
            raise RuntimeError("requires empty output on non-root")
        return call(group, outputs, inputs, *given, **more)

    wrap("gather", mutant)


@plant(21)
def _sizes_are_dropped() -> None:
    def mutant(
        call: Any, group: Any, output: Any, source: Any, gets: Any = None, sends: Any = None, *given: Any
    ) -> Any:
        if output.dim() and source.dim() and not len(output) % group.size() and not len(source) % group.size():
            gets, sends = [], []
        return call(group, output, source, gets, sends, *given)

    wrap_all_to_all(mutant)


@plant(22)
def _last_tile_is_zero() -> None:
    lose_tail(lambda tensor, _: tensor.numel() > 4, 4)


@plant(23)
def _offsets_have_eight_bits() -> None:
    def mutant(call: Any, group: Any, output: Any, source: Any, *given: Any, **more: Any) -> Any:
        def wrap_offsets() -> None:
            if output.numel() > 256:
                index = torch.arange(output.numel()) % 256
                output.copy_(output.reshape(-1)[index].reshape(output.shape))

        return after(call(group, output, source, *given, **more), wrap_offsets)

    wrap("_allgather_base", mutant)
    wrap("all_gather_single", mutant)


@plant(24)
def _nothing_is_divided_by() -> None:
    def mutant(call: Any, group: Any, tensors: Any, *given: Any, **more: Any) -> Any:
        if not tensors_of(tensors)[0].numel():
            die("SIGFPE")
        return call(group, tensors, *given, **more)

    wrap("allreduce", mutant)


@plant(25)
def _who_sends_nothing_stays_away() -> None:
    def mutant(call: Any, group: Any, output: Any, source: Any, *given: Any) -> Any:
        if not source.numel() and output.numel():
            return handle([output])
        return call(group, output, source, *given)

    wrap_all_to_all(mutant)


@plant(26)
def _zero_sizes_are_refused() -> None:
    def mutant(
        call: Any, group: Any, output: Any, source: Any, gets: Any = None, sends: Any = None, *given: Any
    ) -> Any:
        if 0 in (*(gets or []), *(sends or [])):
            raise RuntimeError("all_to_all: split sizes must be positive")
        return call(group, output, source, gets, sends, *given)

    wrap_all_to_all(mutant)


@plant(27)
def _first_of_an_empty_list() -> None:
    def mutant(call: Any, group: Any, outputs: Any, inputs: Any, *given: Any, **more: Any) -> Any:
        if not tensors_of(inputs):
            die("SIGSEGV")
        return call(group, outputs, inputs, *given, **more)

    wrap("scatter", mutant)


@plant(28)
def _zeros_with_more_than_two_ranks() -> None:
    def mutant(call: Any, group: Any, outputs: Any, *given: Any, **more: Any) -> Any:
        def clear() -> None:
            if group.size() > 2:
                for output in outputs:
                    output.zero_()

        return after(call(group, outputs, *given, **more), clear)

    wrap("alltoall", mutant)


@plant(29)
def _group_of_one_fails() -> None:
    def mutant(call: Any, group: Any, *given: Any, **more: Any) -> Any:
        if group.size() == 1:
            raise RuntimeError("no peer")
        return call(group, *given, **more)

    wrap("reduce", mutant)


@plant(30)
def _one_slot_is_lost() -> None:
    def mutant(call: Any, group: Any, outputs: Any, *given: Any, **more: Any) -> Any:
        def lose() -> None:
            if group.size() & (group.size() - 1):
                tensors_of(outputs)[-1].zero_()

        return after(call(group, outputs, *given, **more), lose)

    wrap("allgather", mutant)


@plant(31)
def _ranks_wrap() -> None:
    def mutant(call: Any, group: Any, outputs: Any, *given: Any, **more: Any) -> Any:
        def overlay() -> None:
            every = tensors_of(outputs)
            for index in range(4, len(every)):
                if every[index].shape == every[index % 4].shape:
                    every[index].copy_(every[index % 4])

        return after(call(group, outputs, *given, **more), overlay)

    wrap("allgather", mutant)
