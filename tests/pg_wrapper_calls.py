"""Collectives as values, one rank's part each, and the check of a report about two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from tests.pg_wrapper_messages import (
    Fingerprint,
    MismatchReport,
    assert_same,
    descriptions_are_comparable,
    expected_differences,
)

if TYPE_CHECKING:
    from dist_testing import World


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's part of a collective."""

    op: str  # the operation as the wrapper prints it
    compared: tuple[torch.Tensor, ...]  # the tensors that the wrapper compares between ranks
    start: Callable[[dist.ProcessGroup], dist.Work]  # begins the collective on a group
    # Whether an error may come at the wait; else it has to come at the call, before the backend gets it.
    fails_late: bool = False


def all_reduce(tensor: torch.Tensor) -> Call:
    """Sum over the ranks, in place."""
    return Call("ALLREDUCE", (tensor,), lambda group: group.allreduce([tensor]))


def reduce(tensor: torch.Tensor) -> Call:
    """Sum over the ranks, on rank 0."""
    return Call("REDUCE", (tensor,), lambda group: group.reduce([tensor]))


def broadcast(tensor: torch.Tensor) -> Call:
    """Broadcast from rank 0."""
    return Call("BROADCAST", (tensor,), lambda group: group.broadcast([tensor]))


def barrier() -> Call:
    """Wait for all ranks; without a tensor, the wrapper compares only the operation."""
    return Call("BARRIER", (), lambda group: group.barrier())


def all_gather(outputs: list[torch.Tensor], tensor: torch.Tensor) -> Call:
    """Gather every rank's `tensor` into every rank's `outputs`."""
    return Call("ALLGATHER", (tensor,), lambda group: group.allgather([outputs], [tensor]))


def scatter(output: torch.Tensor, inputs: list[torch.Tensor] | None) -> Call:
    """Scatter from rank 0, which alone passes `inputs`: one tensor for each rank."""
    lists = [] if inputs is None else [inputs]
    return Call("SCATTER", (output,), lambda group: group.scatter([output], lists), fails_late=True)


def all_gather_base(output: torch.Tensor, tensor: torch.Tensor) -> Call:
    """Gather every rank's `tensor`, concatenated, into `output`."""
    return Call("_ALLGATHER_BASE", (tensor,), lambda group: group._allgather_base(output, tensor), fails_late=True)


def reduce_scatter_base(output: torch.Tensor, tensor: torch.Tensor) -> Call:
    """Sum all `tensor` and write this rank's share into `output`."""
    return Call(
        "_REDUCE_SCATTER_BASE",
        (tensor, output),
        lambda group: group._reduce_scatter_base(output, tensor, dist.ReduceScatterOptions()),
        fails_late=True,
    )


def reduce_scatter_coalesced(outputs: list[torch.Tensor], tensors: list[torch.Tensor]) -> Call:
    """Do what `reduce_scatter_base` does for several pairs in one call; the wrapper compares nothing but the operation.

    A wrapper by itself has no such method: only a process group around one does.
    """
    return Call(
        "REDUCE_SCATTER_TENSOR_COALESCED",
        (),
        lambda group: group.reduce_scatter_tensor_coalesced(outputs, tensors),
    )


def all_to_all_base(output: torch.Tensor, tensor: torch.Tensor, output_lengths: list[int], lengths: list[int]) -> Call:
    """Exchange parts of `tensor`, one for each rank; the wrapper compares nothing, because parts may be uneven."""
    return Call("ALLTOALL_BASE", (), lambda group: group.alltoall_base(output, tensor, output_lengths, lengths))


def _fail_in_time(call: Call, group: dist.ProcessGroup) -> None:
    """Begin a call that has to fail; wait for it only if the error may come at the wait."""
    work = call.start(group)
    if call.fails_late:
        work.wait()


def assert_mismatch_is_reported(
    world: World,
    group: dist.ProcessGroup,
    odd: Call,
    others: Call,
    odd_rank: int = 0,
    sequence: int = 0,
) -> None:
    """Let one rank of a wrapped group of all call `odd` and the others `others`, and check the error on every rank.

    At the end the ranks run a good all-reduce, which shows that every rank came back, that the bad calls did not
    reach the backend and that the group still works. This all-reduce counts as a collective. `sequence` says how many
    collectives the group ran before.
    """
    is_odd = world.rank == odd_rank
    call, peer_call = (odd, others) if is_odd else (others, odd)
    with pytest.raises(RuntimeError) as caught:
        _fail_in_time(call, group)
    message = str(caught.value)
    report = MismatchReport.parse(message)

    own = Fingerprint.of(sequence, call.op, call.compared)
    assert_same("the rank that complains", world.rank, report.rank, message)
    assert_same("its own collective", own, report.own, message)
    peers = [rank for rank in range(world.size) if (rank == odd_rank) != is_odd]
    assert report.peer in peers, f"expected one of the ranks {peers} as the peer:\n{message}"
    if descriptions_are_comparable(call.compared, peer_call.compared):
        theirs = Fingerprint.of(sequence, peer_call.op, peer_call.compared)
        assert_same("the peer's collective", theirs, report.theirs, message)
        differences = expected_differences(own, theirs)
        assert_same("how they differ", differences, report.differences, message)
    else:
        assert report.differences, f"no word on how the collectives differ:\n{message}"

    assert_all_reduce_works(world, group)


def assert_all_reduce_works(world: World, group: dist.ProcessGroup) -> None:
    """Run one good all-reduce on the group and check its value."""
    ones = torch.ones(3, device=world.device)
    all_reduce(ones).start(group).wait()
    assert ones.tolist() == [float(world.size)] * 3, f"{world.size} ranks summed ones to {ones}"
