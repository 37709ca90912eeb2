"""The collectives that reduce: all_reduce, reduce, reduce_scatter and their variants."""

# torch's stubs have overloads for two styles of arguments; here, one method takes both.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from dist_testing.threaded import data
from dist_testing.threaded.arguments import (
    Tensors,
    check_pairs,
    check_same_size,
    limit_of,
    listed,
    reduction_of,
    single,
    sizes_of,
    text_of,
)
from dist_testing.threaded.base import GroupBase
from dist_testing.threaded.work import ThreadWork


class Reductions(GroupBase):
    """The collectives of `ThreadedGroup` that reduce; see there for arguments and errors that all collectives share.

    Tensors are dense, of any dtype for which the reduce operation is defined (`torch.distributed.ReduceOp`). All ranks
    get the same bits, and the same in every run: the order of the additions does not depend on timing. AVG of integers
    is truncated, as NCCL does.
    """

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None) -> ThreadWork:
        """Replace every rank's tensor by the reduction of all ranks' tensors; see `torch.distributed.all_reduce`.

        Args:
            tensors: Inputs and outputs: a tensor of any shape, or a list of tensors, which are reduced index by index.
                At one index, all ranks have the same dtype and number of elements.
            opts: `AllreduceOptions`, or the reduce operation.
            timeout: Time limit of the call.
            op: The reduce operation; SUM by default.
        """
        return self._all_reduce("all_reduce", listed(tensors), opts, timeout, op)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> ThreadWork:
        """Do `allreduce` for one or more tensors in one call; see `torch.distributed.all_reduce_coalesced`."""
        return self._all_reduce("all_reduce_coalesced", tensors, opts, None, None)

    def _all_reduce(self, name: str, tensors: Tensors, opts: Any, timeout: Any, op: Any) -> ThreadWork:
        op_name, factor = reduction_of(opts, op, tensors)
        return self._meet(
            name,
            (op_name, sizes_of(tensors)),
            lambda: f"{op_name}, {text_of(tensors)}",
            (tensors, factor),
            partial(data.all_reduce, op_name),
            tensors,
            limit_of(opts, timeout),
        )

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> ThreadWork:
        """Replace the root's tensor by the reduction of all ranks' tensors; see `torch.distributed.reduce`.

        The tensors of the other ranks keep their values, which `torch.distributed.reduce` does not promise.

        Args:
            tensors: Input, and output on the root: a tensor of any shape, or a list of one. All ranks have the same
                dtype and number of elements.
            opts: `ReduceOptions`, or the root.
            op: The reduce operation; SUM by default.
            timeout: Time limit of the call.
            root: The rank of the group that gets the result; 0 by default.
        """
        tensors = [single(tensors)]
        is_root = isinstance(opts, int)
        root = self._root(opts, root)
        op_name, factor = reduction_of(None if is_root else opts, op, tensors)
        return self._meet(
            "reduce",
            (root, op_name, sizes_of(tensors)),
            lambda: f"{op_name} to rank {self._shared.label.ranks[root]}, {text_of(tensors)}",
            (tensors, factor),
            partial(data.reduce, op_name, root),
            tensors,
            limit_of(opts, timeout),
        )

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> ThreadWork:
        """Write to rank r the reduction of all ranks' inputs at index r; see `torch.distributed.reduce_scatter`.

        Args:
            outputs: The output: a tensor, or a list of one. It has the dtype and number of elements of the input at
                this rank's index.
            inputs: A list of n tensors, or a list of one such list. All ranks have the same dtypes and numbers of
                elements; the sizes at different indices may differ.
            opts: `ReduceScatterOptions`, or the reduce operation.
            timeout: Time limit of the call.
            op: The reduce operation; SUM by default.
        """
        output, inputs = single(outputs), self._one_per_rank(inputs, "an input")
        check_same_size(inputs[self._rank], output)
        op_name, factor = reduction_of(opts, op, inputs)
        return self._meet(
            "reduce_scatter",
            (op_name, sizes_of(inputs)),
            lambda: f"{op_name}, {text_of(inputs)}",
            (output, (inputs, factor)),
            partial(data.reduce_scatter, op_name),
            [output],
            limit_of(opts, timeout),
            inputs,
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> ThreadWork:  # noqa: A002
        """Reduce the inputs and write part r of n to rank r; see `torch.distributed.reduce_scatter_tensor`.

        Args:
            output: This rank's part, of any shape.
            input: n times as many elements as `output`, of the same dtype; cut into n equal parts in row-major order.
                All ranks have the same dtype and number of elements.
            opts: `ReduceScatterOptions`, or the reduce operation; SUM by default.
        """
        return self._reduce_scatter_single("reduce_scatter_tensor", [output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> ThreadWork:
        """Do `reduce_scatter_single` for one or more pairs in one call, as c10d's coalescing manager asks for."""
        return self._reduce_scatter_single("reduce_scatter_tensor_coalesced", outputs, inputs, opts)

    # torch's older names of the same methods.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_single(self, name: str, outputs: Tensors, inputs: Tensors, opts: Any) -> ThreadWork:
        check_pairs(outputs, inputs)
        for output, whole in zip(outputs, inputs, strict=True):
            self._check_is_whole(whole, output, "input", "output")
        op_name, factor = reduction_of(opts, None, inputs)
        return self._meet(
            name,
            (op_name, sizes_of(inputs)),
            lambda: f"{op_name}, {text_of(inputs)}",
            (outputs, (inputs, factor)),
            partial(data.reduce_scatter_single, op_name),
            outputs,
            limit_of(opts),
            inputs,
        )
