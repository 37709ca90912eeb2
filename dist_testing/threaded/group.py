"""The process group of a world whose ranks are threads: the collectives and the barriers.

Importing it registers the backend "threaded" with torch: its declaration names this module.
"""

# torch's stubs have overloads for two styles of arguments; here, one method takes both.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _DistributedBackendOptions
from torch.distributed.constants import default_pg_timeout

from dist_testing.core.ground.errors import UsageError
from dist_testing.threaded import BACKEND, data
from dist_testing.threaded.arguments import (
    ArgumentError,
    Tensors,
    check_pairs,
    check_same_size,
    limit_of,
    listed,
    reduction_of,
    single,
    sizes_of,
)
from dist_testing.threaded.base import GroupBase
from dist_testing.threaded.data import Share
from dist_testing.threaded.meeting import SharedGroup
from dist_testing.threaded.members import current_member
from dist_testing.threaded.operation import GroupLabel
from dist_testing.threaded.work import ThreadWork

# Numbers for the names of groups, which are unique in this process.
_numbers = itertools.count()


class ThreadedGroup(GroupBase):
    """One rank's object of a process group whose ranks are threads.

    A collective returns without waiting; the last rank to call it moves the data of all. Methods have the names that
    torch 2.10 and later call, and take the arguments of `torch.distributed`'s functions as well as those of the
    object-style API of `torch.distributed.ProcessGroup`. n is the number of ranks. For all collectives:

    - Tensors may have any dtype and shape, may be empty or not contiguous, and may lie on any device. Values are copied
      in row-major order; an output needs as many elements as its value, not the same shape. All ranks pass the same
      dtypes and sizes, if the method does not say otherwise. A list of one list of tensors is that list.
    - `opts` is c10d's options object, or in its place the root or the reduce operation; None (default) means all
      defaults.
    - `timeout` is the time limit from the call on; the group's own by default, or where it is not positive.
    - `root` is a rank of the group, from 0; the options' `rootRank` by default, else 0.
    - `op` is the reduce operation; SUM by default. Tensors are dense, of any dtype for which it is defined
      (`torch.distributed.ReduceOp`). All ranks get the same bits, and the same in every run: the order of the additions
      does not depend on timing. AVG of integers is truncated, as NCCL does.
    - The result is the call's work, whose `wait` returns when the outputs are written.

    All collectives raise at the call, on this rank alone:

    - ArgumentError: If the arguments do not fit together, or name a rank that the group does not have.
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
        """Copy the root's tensors to every rank; see `torch.distributed.broadcast`."""
        tensors, root, limit_s = listed(tensors), self._root(opts, root), limit_of(opts, timeout)
        note, move = f"from rank {self._global(root)}, ", partial(data.broadcast, root)
        return self._meet("broadcast", (root, sizes_of(tensors)), Share(tensors, tensors), move, limit_s, note)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> ThreadWork:
        """Copy every rank's input to the output of its number on every rank; see `torch.distributed.all_gather`.

        The inputs of different ranks may differ in dtype and size.
        """
        return self._all_gather("all_gather", [outputs], [single(inputs)], limit_of(opts, timeout))

    def allgather_coalesced(self, outputs: Any, inputs: Tensors, opts: Any = None) -> ThreadWork:
        """Do `allgather` for several inputs in one call; see `torch.distributed.all_gather_coalesced`.

        `outputs` has one list for each rank. In the list of rank r, output i is for the input at index i of rank r.
        """
        if len(outputs) != self._size:
            raise ArgumentError(
                f"{len(outputs)} lists of outputs in a group of {self._size}; expected a list of outputs for each rank"
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
        signature, flat = tuple(map(sizes_of, outputs)), [output for of_input in outputs for output in of_input]
        return self._meet(name, signature, Share(flat, inputs), data.all_gather, limit_s)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> ThreadWork:  # noqa: A002
        """Copy every rank's input to every rank, into one tensor; see `torch.distributed.all_gather_into_tensor`.

        Part r of n of the output, in row-major order, gets the input of rank r.
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
        return self._meet(name, sizes_of(inputs), Share(outputs, inputs), data.all_gather_single, limit_of(opts))

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> ThreadWork:
        """Copy every rank's input to the output of its number on the root; see `torch.distributed.gather`.

        `outputs` is ignored on the other ranks. Sizes may differ, which `torch.distributed.gather` does not promise.
        """
        root, value, limit_s = self._root(opts, root), single(inputs), limit_of(opts, timeout)
        outputs = self._one_per_rank(outputs, "an output") if self._rank == root else []
        note, move = f"to rank {self._global(root)}, ", partial(data.gather, root)
        return self._meet("gather", (root, value.dtype), Share(outputs, [value]), move, limit_s, note)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> ThreadWork:  # noqa: A002
        """Copy every rank's input into one tensor of the root; see `torch.distributed.gather_single` of torch 2.14."""
        outputs: list[list[Tensor]] = []
        if self._rank == self._root(opts, None):
            self._check_is_whole(output, input, "output", "input")
            outputs = [list(output.view(self._size, *input.shape))]
        return self.gather(outputs, [input], opts)

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> ThreadWork:
        """Copy the root's input at index r to rank r; see `torch.distributed.scatter`.

        `inputs` is ignored on the other ranks. Sizes may differ, which `torch.distributed.scatter` does not promise.
        """
        root, output, limit_s = self._root(opts, root), single(outputs), limit_of(opts, timeout)
        inputs = self._one_per_rank(inputs, "an input") if self._rank == root else []
        note, move = f"from rank {self._global(root)}, ", partial(data.scatter, root)
        return self._meet("scatter", (root, output.dtype), Share([output], inputs), move, limit_s, note)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: Any = None) -> ThreadWork:
        """Copy the input at index r of rank p to the output at index p of rank r; see `torch.distributed.all_to_all`.

        Sizes may differ. All ranks have the same dtype at index 0 of their inputs, and of their outputs.
        """
        outputs, inputs = self._one_per_rank(outputs, "an output"), self._one_per_rank(inputs, "an input")
        signature, limit_s = (inputs[0].dtype, outputs[0].dtype), limit_of(opts, timeout)
        return self._meet("all_to_all", signature, Share(outputs, inputs), data.all_to_all, limit_s)

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

        Both are cut along their first dimension: by n sizes, or into n equal parts without sizes.
        """
        parts = Share(self._cut(output, output_split_sizes, "output"), self._cut(input, input_split_sizes, "input"))
        signature, limit_s = (input.dtype, output.dtype), limit_of(opts, timeout)
        note, whole = f"parts {[len(part) for part in parts.inputs]} of ", Share([output], [input])
        return self._meet("all_to_all_single", signature, parts, data.all_to_all, limit_s, note, whole)

    alltoall_base = all_to_all_single

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None) -> ThreadWork:
        """Replace the tensors at one index of all ranks by their reduction; see `torch.distributed.all_reduce`."""
        tensors = listed(tensors)
        return self._reduction("all_reduce", tensors, tensors, data.all_reduce, opts, timeout, op)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> ThreadWork:
        """Do `allreduce` for one or more tensors in one call; see `torch.distributed.all_reduce_coalesced`."""
        return self._reduction("all_reduce_coalesced", tensors, tensors, data.all_reduce, opts)

    def _reduction(
        self,
        name: str,
        outputs: Tensors,
        inputs: Tensors,
        move: Callable[[str, Sequence[Share]], None],
        opts: Any,
        timeout: Any = None,
        op: Any = None,
    ) -> ThreadWork:
        op_name, factor = reduction_of(opts, op, inputs)
        share, limit_s = Share(outputs, inputs, factor), limit_of(opts, timeout)
        return self._meet(name, (op_name, sizes_of(inputs)), share, partial(move, op_name), limit_s, f"{op_name}, ")

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> ThreadWork:
        """Replace the root's tensor by the reduction of all ranks' tensors; see `torch.distributed.reduce`.

        The tensors of the other ranks keep their values, which `torch.distributed.reduce` does not promise.
        """
        tensors, limit_s = [single(tensors)], limit_of(opts, timeout)
        op_name, factor = reduction_of(None if isinstance(opts, int) else opts, op, tensors)
        root = self._root(opts, root)
        signature, move = (root, op_name, sizes_of(tensors)), partial(data.reduce, op_name, root)
        note = f"{op_name} to rank {self._global(root)}, "
        return self._meet("reduce", signature, Share(tensors, tensors, factor), move, limit_s, note)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> ThreadWork:
        """Write to rank r the reduction of all ranks' inputs at index r; see `torch.distributed.reduce_scatter`.

        The inputs at different indices may differ in size.
        """
        output, inputs = single(outputs), self._one_per_rank(inputs, "an input")
        check_same_size(inputs[self._rank], output)
        return self._reduction("reduce_scatter", [output], inputs, data.reduce_scatter, opts, timeout, op)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> ThreadWork:  # noqa: A002
        """Reduce the inputs and write part r of n to rank r; see `torch.distributed.reduce_scatter_tensor`.

        The input is cut into n equal parts in row-major order.
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
        return self._reduction(name, outputs, inputs, data.reduce_scatter_single, opts)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> ThreadWork:
        """Be done when every rank has called it; see `torch.distributed.barrier`. `opts` may be the time limit."""
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        return self._meet("barrier", (), Share(), data.meet_only, limit_of(opts, timeout))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Block until every rank has called it; see `torch.distributed.monitored_barrier`, which works with gloo only.

        Raises what the `wait` of a barrier raises. The error names all missing ranks, whatever `wait_all_ranks` says.
        """
        self._meet("monitored_barrier", (), Share(), data.meet_only, limit_of(None, timeout)).wait()


def create_group(options: _DistributedBackendOptions, backend_options: object = None) -> ThreadedGroup:
    """Create one rank's process group object; `torch.distributed.init_process_group` and `new_group` call it.

    Does not wait for the other ranks. The ranks that pass the same store get the same group. Ignores `backend_options`.
    """
    member = current_member()
    if member is None:
        raise UsageError(
            'Backend "threaded" was requested outside of a world of threads.\n'
            "Its ranks are threads that dist_testing starts; the calling thread is not one of them.\n"
            'Use isolation="thread" or MultiThreadedTestCase; for ranks that are processes, use another backend.'
        )
    world, store = member.world, options.store
    rank, size = options.group_rank, options.group_size
    if not 0 <= rank < size:
        raise UsageError(
            f"A group was requested with rank {rank} and world_size {size}.\n"
            "A rank is a number from 0 to world_size - 1.\n"
            f"Pass rank={member.rank} and world_size={world.size} to init_process_group in this world."
        )
    # Only the store identifies a group, because threads of one world may create several groups of the same name. The
    # first rank to arrive names the group; when a rank creates it again, that is a new group.
    turn = store.add(f"dist_testing/rank/{rank}", 1)
    name = store.compare_set(f"dist_testing/group/{turn}", "", f"threads-{next(_numbers)}").decode()
    ranks = list(options.global_ranks_in_group)
    title = f"group {options.group_id!r} of ranks {', '.join(map(str, ranks))}" if ranks else "the default group"
    if not ranks:
        world.limit_s = min(options.timeout, default_pg_timeout).total_seconds()
    shared = SharedGroup.joined(world, name, GroupLabel(title, tuple(ranks or range(size))), rank, member)
    return ThreadedGroup(store, rank, shared, world, options.timeout.total_seconds())


# torch's own test code registers a different group under the same name. It comes first, because in some versions of
# torch its import fails if the name is already registered. While a world of ours runs, `isolation.py` changes the name.
with contextlib.suppress(ImportError):
    importlib.import_module("torch.testing._internal.distributed.multi_threaded_pg")
if BACKEND.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu", "cuda"])
