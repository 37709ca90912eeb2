"""The process group of a world whose ranks are threads: the collectives that move tensors, and the barriers."""

# torch's stubs have overloads for two styles of arguments; here, one method takes both.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
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
    single,
    sizes_of,
    text_of,
)
from dist_testing.threaded.reductions import Reductions
from dist_testing.threaded.work import ThreadWork


class ThreadedGroup(Reductions):
    """One rank's object of a process group whose ranks are threads.

    A collective returns without waiting; the last rank to call it moves the data of all. Methods have the names that
    torch 2.10 and later call, and take the arguments of `torch.distributed`'s functions as well as those of the
    object-style API of `torch.distributed.ProcessGroup`. n is the number of ranks. For all collectives:

    - Tensors may have any dtype and shape, may be empty or not contiguous, and may lie on any device. Values are copied
      in row-major order; an output needs as many elements as its value, not the same shape.
    - `opts` is c10d's options object, or a plain value that the method names; None (default) means all defaults.
    - `timeout` is the time limit from the call on; the group's own by default, or where it is not positive.
    - `root` is a rank of the group, from 0; the options' `rootRank` by default, else 0.
    - The result is the call's work, whose `wait` returns when the outputs are written.

    All collectives raise at the call, on this rank alone:

    - ValueError: If the arguments do not fit together, or name a rank that the group does not have.
    - UsageError: If this rank has destroyed the group.
    - PeerFailedError: If a rank of the world has failed.

    The `wait` of the work raises, on every rank:

    - CollectiveMismatchError: If the calls of the ranks differ in function, root, reduce operation, dtype or size.
      c10d compares the calls only with `TORCH_DISTRIBUTED_DEBUG=DETAIL`.
    - DeadlockError: If the collective can never complete.
    - CollectiveTimeoutError: If the time limit is reached.
    - PeerFailedError: If a rank of the world has failed.
    - CollectiveError: If torch cannot read or write one of the tensors.
    """

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None) -> ThreadWork:
        """Copy the root's tensor to every rank; see `torch.distributed.broadcast`.

        Args:
            tensors: Input on the root, output on the others: a tensor, or a list of tensors, which are copied index by
                index. At one index, all ranks have the same dtype and number of elements.
            opts: `BroadcastOptions`, or the root.
            timeout: Time limit of the call.
            root: The rank of the group that sends.
        """
        tensors = listed(tensors)
        root = self._root(opts, root)
        return self._meet(
            "broadcast",
            (root, sizes_of(tensors)),
            lambda: f"from rank {self._shared.label.ranks[root]}, {text_of(tensors)}",
            tensors,
            partial(data.broadcast, root),
            tensors,
            limit_of(opts, timeout),
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> ThreadWork:
        """Copy every rank's input to every rank; see `torch.distributed.all_gather`.

        Args:
            outputs: A list of n tensors, or a list of one such list. Output r has the dtype and number of elements of
                the input of rank r. All ranks pass outputs of the same dtypes and sizes; the sizes for different ranks
                may differ.
            inputs: The input: a tensor, or a list of one.
            opts: `AllgatherOptions`.
            timeout: Time limit of the call.
        """
        return self._all_gather("all_gather", [outputs], [single(inputs)], limit_of(opts, timeout))

    def allgather_coalesced(self, outputs: Any, inputs: Tensors, opts: Any = None) -> ThreadWork:
        """Do `allgather` for several inputs in one call; see `torch.distributed.all_gather_coalesced`.

        `outputs` has one list for each rank. In the list of rank r, output i has the dtype and number of elements of
        the input at index i of rank r.
        """
        if len(outputs) != self.size():
            raise ValueError(
                f"{len(outputs)} lists of outputs in a group of {self.size()}; expected a list of outputs for each rank"
            )
        for of_rank in outputs:
            check_pairs(of_rank, inputs)
        by_input = [[of_rank[index] for of_rank in outputs] for index in range(len(inputs))]
        return self._all_gather("all_gather_coalesced", by_input, inputs, limit_of(opts))

    def _all_gather(self, name: str, outputs: Sequence[Tensors], inputs: Tensors, limit_s: float | None) -> ThreadWork:
        check_pairs(outputs, inputs)
        outputs = [self._one_per_rank(of_input, "an output") for of_input in outputs]
        for of_input, value in zip(outputs, inputs, strict=True):
            check_same_size(value, of_input[self._rank])
        return self._meet(
            name,
            tuple(map(sizes_of, outputs)),
            lambda: text_of(inputs),
            (outputs, inputs),
            data.all_gather,
            [output for of_input in outputs for output in of_input],
            limit_s,
            inputs,
        )

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> ThreadWork:  # noqa: A002
        """Copy every rank's input to every rank, into one tensor; see `torch.distributed.all_gather_into_tensor`.

        Args:
            output: n times as many elements as `input`, of the same dtype. Part r of n, in row-major order, gets the
                input of rank r.
            input: This rank's part, of any shape. All ranks have the same dtype and number of elements.
            opts: `AllgatherOptions`.
        """
        return self._all_gather_single("all_gather_into_tensor", [output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> ThreadWork:
        """Do `all_gather_single` for one or more pairs in one call, as c10d's coalescing manager asks for."""
        return self._all_gather_single("all_gather_into_tensor_coalesced", outputs, inputs, opts)

    # torch's older names of the same methods.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather_single(self, name: str, outputs: Tensors, inputs: Tensors, opts: Any) -> ThreadWork:
        check_pairs(outputs, inputs)
        for whole, part in zip(outputs, inputs, strict=True):
            self._check_is_whole(whole, part, "output", "input")
        return self._meet(
            name,
            sizes_of(inputs),
            lambda: text_of(inputs),
            (outputs, inputs),
            data.all_gather_single,
            outputs,
            limit_of(opts),
            inputs,
        )

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> ThreadWork:
        """Copy every rank's input to the root; see `torch.distributed.gather`.

        Args:
            outputs: On the root, a list of n tensors, or a list of one such list; ignored on the other ranks. Output r
                has the dtype and number of elements of the input of rank r.
            inputs: The input: a tensor, or a list of one. All ranks have the same dtype; their sizes may differ, which
                `torch.distributed.gather` does not promise.
            opts: `GatherOptions`, or the root.
            timeout: Time limit of the call.
            root: The rank of the group that gets the values.
        """
        root = self._root(opts, root)
        value = single(inputs)
        outputs = self._one_per_rank(outputs, "an output") if self._rank == root else []
        return self._meet(
            "gather",
            (root, value.dtype),
            lambda: f"to rank {self._shared.label.ranks[root]}, {text_of([value])}",
            (outputs, value),
            partial(data.gather, root),
            outputs,
            limit_of(opts, timeout),
            [value],
        )

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> ThreadWork:
        """Copy the root's input at index r to rank r; see `torch.distributed.scatter`.

        Args:
            outputs: The output: a tensor, or a list of one. All ranks have the same dtype.
            inputs: On the root, a list of n tensors, or a list of one such list; ignored on the other ranks. Input r
                has the dtype and number of elements of the output of rank r; sizes may differ, which
                `torch.distributed.scatter` does not promise.
            opts: `ScatterOptions`, or the root.
            timeout: Time limit of the call.
            root: The rank of the group that sends.
        """
        root = self._root(opts, root)
        output = single(outputs)
        inputs = self._one_per_rank(inputs, "an input") if self._rank == root else []
        return self._meet(
            "scatter",
            (root, output.dtype),
            lambda: f"from rank {self._shared.label.ranks[root]}, {text_of(inputs or [output])}",
            (output, inputs),
            partial(data.scatter, root),
            [output],
            limit_of(opts, timeout),
            inputs,
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: Any = None) -> ThreadWork:
        """Copy the input at index r of rank p to the output at index p of rank r; see `torch.distributed.all_to_all`.

        Args:
            outputs: n tensors. Output p has the dtype and number of elements of what rank p sends to this rank.
            inputs: n tensors. All ranks have the same dtype at index 0 of their inputs, and of their outputs.
            opts: `AllToAllOptions`.
            timeout: Time limit of the call.
        """
        outputs = self._one_per_rank(outputs, "an output")
        inputs = self._one_per_rank(inputs, "an input")
        return self._meet(
            "all_to_all",
            (inputs[0].dtype, outputs[0].dtype),
            lambda: text_of(inputs),
            (outputs, inputs),
            data.all_to_all,
            outputs,
            limit_of(opts, timeout),
            inputs,
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
        """Do `alltoall` with the parts of one output and one input; see `torch.distributed.all_to_all_single`.

        Args:
            output: Cut along its first dimension into n outputs.
            input: Cut along its first dimension into n inputs.
            output_split_sizes: n sizes along the first dimension of `output`, which add up to its length. None or
                empty: n equal parts.
            input_split_sizes: The same for `input`.
            opts: `AllToAllOptions`.
            timeout: Time limit of the call.
        """
        outputs = self._cut(output, output_split_sizes, "output")
        inputs = self._cut(input, input_split_sizes, "input")
        return self._meet(
            "all_to_all_single",
            (input.dtype, output.dtype),
            lambda: f"{text_of([input])} as {[len(part) for part in inputs]}",
            (outputs, inputs),
            data.all_to_all,
            [output],
            limit_of(opts, timeout),
            [input],
        )

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> ThreadWork:
        """Wait for all ranks: the work is done when every rank has called it; see `torch.distributed.barrier`.

        `opts` is `BarrierOptions`, or the time limit.
        """
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        return self._meet("barrier", (), str, None, data.meet_only, [], limit_of(opts, timeout))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Block until every rank has called it; see `torch.distributed.monitored_barrier`, which works with gloo only.

        Raises what the `wait` of a barrier raises. The error names all missing ranks, whatever `wait_all_ranks` says.
        """
        self._meet("monitored_barrier", (), str, None, data.meet_only, [], limit_of(None, timeout)).wait()
