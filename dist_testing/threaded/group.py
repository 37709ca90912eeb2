"""The process group of a world of threads."""

# torch's stubs have overloads for two styles of arguments; here, one method takes both.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from torch import Tensor

from dist_testing.threaded import data
from dist_testing.threaded.arguments import (
    Tensors,
    check_same_size,
    innermost,
    limit_of,
    listed,
    op_of,
    single,
    sizes_of,
    text_of,
)
from dist_testing.threaded.reduce_op import reduction_of
from dist_testing.threaded.side import GroupSide
from dist_testing.threaded.work import ThreadWork

__all__ = ["ThreadedGroup"]


class ThreadedGroup(GroupSide):
    """One rank's side of a group whose ranks are threads: its collectives.

    Calls do not block: the last rank to come moves the data of all. Methods have the names that all versions of torch
    from 2.10 on call, and take the arguments of the object-style API too.
    """

    # Collectives that reduce.

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None) -> ThreadWork:
        """Every rank's tensor becomes the reduction of all of them."""
        return self._all_reduce("all_reduce", listed(tensors), opts, timeout, op)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> ThreadWork:
        """The same for several tensors."""
        return self._all_reduce("all_reduce_coalesced", tensors, opts, None, None)

    def _all_reduce(self, name: str, tensors: Tensors, opts: Any, timeout: Any, op: Any) -> ThreadWork:
        reduction = reduction_of(op_of(opts, op), tensors)
        return self._meet(
            name,
            (reduction.name, sizes_of(tensors)),
            lambda: f"{reduction.name}, {text_of(tensors)}",
            (tensors, reduction.factor),
            partial(data.all_reduce, reduction.name),
            tensors,
            limit_of(opts, timeout),
        )

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> ThreadWork:
        """The root's tensor becomes the reduction of all of them."""
        tensors = listed(tensors)
        root = self._root(opts, root)
        reduction = reduction_of(op_of(opts, op), tensors)
        return self._meet(
            "reduce",
            (root, reduction.name, sizes_of(tensors)),
            lambda: f"{reduction.name} to rank {self._shared.ranks[root]}, {text_of(tensors)}",
            (tensors, reduction.factor),
            partial(data.reduce, reduction.name, root),
            tensors,
            limit_of(opts, timeout),
        )

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> ThreadWork:
        """Each rank gets the reduction of the tensors that the ranks have for it."""
        output, inputs = single(outputs), innermost(inputs)
        self._check_one_per_rank(inputs, "an input")
        check_same_size(inputs[self._rank], output)
        reduction = reduction_of(op_of(opts, op), inputs)
        return self._meet(
            "reduce_scatter",
            (reduction.name, sizes_of(inputs)),
            lambda: f"{reduction.name}, {text_of(inputs)}",
            (output, (inputs, reduction.factor)),
            partial(data.reduce_scatter, reduction.name),
            [output],
            limit_of(opts, timeout),
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> ThreadWork:  # noqa: A002
        """Each rank gets its part of the reduction of all inputs."""
        return self._reduce_scatter_single("reduce_scatter_tensor", [output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> ThreadWork:
        """The same for several pairs of output and input."""
        return self._reduce_scatter_single("reduce_scatter_tensor_coalesced", outputs, inputs, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_single(self, name: str, outputs: Tensors, inputs: Tensors, opts: Any) -> ThreadWork:
        for output, whole in zip(outputs, inputs, strict=True):
            self._check_is_whole(whole, output, "input", "output")
        reduction = reduction_of(op_of(opts, None), inputs)
        return self._meet(
            name,
            (reduction.name, sizes_of(inputs)),
            lambda: f"{reduction.name}, {text_of(inputs)}",
            (outputs, (inputs, reduction.factor)),
            partial(data.reduce_scatter_single, reduction.name),
            outputs,
            limit_of(opts, None),
        )

    # Collectives that move.

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None) -> ThreadWork:
        """Every rank's tensor becomes the root's."""
        tensors = listed(tensors)
        root = self._root(opts, root)
        return self._meet(
            "broadcast",
            (root, sizes_of(tensors)),
            lambda: f"from rank {self._shared.ranks[root]}, {text_of(tensors)}",
            tensors,
            partial(data.broadcast, root),
            tensors,
            limit_of(opts, timeout),
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> ThreadWork:
        """Every rank gets every rank's tensor."""
        return self._all_gather("all_gather", [innermost(outputs)], [single(inputs)], limit_of(opts, timeout))

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> ThreadWork:
        """The same for several tensors; an output list is per tensor, with one entry per rank."""
        return self._all_gather("all_gather_coalesced", outputs, inputs, limit_of(opts, None))

    def _all_gather(self, name: str, outputs: Sequence[Tensors], inputs: Tensors, limit_s: float | None) -> ThreadWork:
        for of_input, value in zip(outputs, inputs, strict=True):
            self._check_one_per_rank(of_input, "an output")
            check_same_size(value, of_input[self._rank])
        return self._meet(
            name,
            tuple(map(sizes_of, outputs)),
            lambda: text_of(inputs),
            (outputs, inputs),
            data.all_gather,
            [output for of_input in outputs for output in of_input],
            limit_s,
        )

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> ThreadWork:  # noqa: A002
        """Every rank gets every rank's tensor, one after the other in one output."""
        return self._all_gather_single("all_gather_into_tensor", [output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> ThreadWork:
        """The same for several pairs of output and input."""
        return self._all_gather_single("all_gather_into_tensor_coalesced", outputs, inputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather_single(self, name: str, outputs: Tensors, inputs: Tensors, opts: Any) -> ThreadWork:
        for whole, part in zip(outputs, inputs, strict=True):
            self._check_is_whole(whole, part, "output", "input")
        return self._meet(
            name,
            sizes_of(inputs),
            lambda: text_of(inputs),
            (outputs, inputs),
            data.all_gather_single,
            outputs,
            limit_of(opts, None),
        )

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> ThreadWork:
        """The root gets every rank's tensor."""
        root = self._root(opts, root)
        value = single(inputs)
        outputs = innermost(outputs) if self._rank == root else []
        if self._rank == root:
            self._check_one_per_rank(outputs, "an output")
        return self._meet(
            "gather",
            (root, value.dtype),
            lambda: f"to rank {self._shared.ranks[root]}, {text_of([value])}",
            (outputs, value),
            partial(data.gather, root),
            outputs,
            limit_of(opts, timeout),
            held=[value],
        )

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> ThreadWork:
        """Each rank gets its one of the root's tensors."""
        root = self._root(opts, root)
        output = single(outputs)
        inputs = innermost(inputs) if self._rank == root else []
        if self._rank == root:
            self._check_one_per_rank(inputs, "an input")
        return self._meet(
            "scatter",
            (root, output.dtype),
            lambda: f"from rank {self._shared.ranks[root]}, {text_of(inputs or [output])}",
            (output, inputs),
            partial(data.scatter, root),
            [output],
            limit_of(opts, timeout),
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: Any = None) -> ThreadWork:
        """Each rank gets its one of every rank's tensors."""
        self._check_one_per_rank(outputs, "an output")
        self._check_one_per_rank(inputs, "an input")
        return self._all_to_all(
            "all_to_all", outputs, inputs, lambda: text_of(inputs), outputs, limit_of(opts, timeout)
        )

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        timeout: Any = None,
    ) -> ThreadWork:
        """The same for tensors that are cut along their first dimension, into equal parts where no sizes are given."""
        outputs = self._cut(output, output_split_sizes, "output")
        inputs = self._cut(input, input_split_sizes, "input")
        return self._all_to_all(
            "all_to_all_single",
            outputs,
            inputs,
            lambda: f"{text_of([input])} as {[len(part) for part in inputs]}",
            [output],
            limit_of(opts, timeout),
        )

    alltoall_base = all_to_all_single

    def _all_to_all(
        self,
        name: str,
        outputs: Tensors,
        inputs: Tensors,
        detail: Callable[[], str],
        results: Tensors,
        limit_s: float | None,
    ) -> ThreadWork:
        return self._meet(
            name, (inputs[0].dtype, outputs[0].dtype), detail, (outputs, inputs), data.all_to_all, results, limit_s
        )

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> ThreadWork:
        """Over when every rank has called it."""
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        return self._meet("barrier", (), str, None, data.meet_only, [], limit_of(opts, timeout))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that blocks; its error names the ranks that did not come, all of them in any case."""
        self._meet("monitored_barrier", (), str, None, data.meet_only, [], limit_of(None, timeout)).wait()
