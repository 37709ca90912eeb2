"""Calls of the ranks that do not fit together, or that one rank may not make, are errors with a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dist_testing.core.ground.errors import CollectiveError, CollectiveMismatchError, UsageError
from tests.threaded.worlds_of_threads import default_group, on_threads, pass_on_threads

HERE = Path(__file__).name


def lines_of(error: BaseException | None, rank: int) -> list[str]:
    """Return the lines of an error text that name one rank alone, without the first line, which names all."""
    return [line for line in str(error).splitlines()[1:] if f"rank {rank}" in line]


MISMATCHES = {
    "name": (
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.barrier(),
        "all_reduce(SUM, float32[2])",
        "barrier()",
    ),
    "size": (lambda: dist.all_reduce(torch.ones(2)), lambda: dist.all_reduce(torch.ones(3)), "[2]", "[3]"),
    "dtype": (
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.all_reduce(torch.ones(2).long()),
        "float32[2]",
        "int64[2]",
    ),
    "reduce op": (
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX),
        "SUM",
        "MAX",
    ),
    "root": (
        lambda: dist.broadcast(torch.ones(2), 0),
        lambda: dist.broadcast(torch.ones(2), 1),
        "from rank 0",
        "from rank 1",
    ),
    "coalesced": (
        lambda: default_group().allreduce_coalesced([torch.ones(2)] * 2).wait(),
        lambda: default_group().allreduce_coalesced([torch.ones(2)]).wait(),
        "float32[2], float32[2]",
        "float32[2]",
    ),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_calls_that_differ_are_an_error_on_every_rank(kind: str) -> None:
    """A group that does not compare the calls would return wrong numbers, or hang."""
    of_most, of_one, most_say, one_says = MISMATCHES[kind]

    def body(rank: int) -> None:
        dist.barrier()
        with pytest.raises(CollectiveMismatchError) as caught:
            (of_one if rank == 2 else of_most)()  # type: ignore[no-untyped-call]  # torch's barrier
        assert "Collective #2 of the default group: the calls of its ranks differ" in str(caught.value)
        (line,) = lines_of(caught.value, 2)
        assert one_says in line
        assert one_says in str(caught.value).splitlines()[0]
        assert HERE in line
        assert any(most_say in other for other in str(caught.value).splitlines() if other != line)
        # The group can still be used, because the collective has ended on all ranks.
        dist.barrier()

    pass_on_threads(body)


@on_threads()
def test_parts_that_do_not_fit_are_an_error_on_every_rank(rank: int) -> None:
    """A rank alone cannot see these errors, because the sizes depend on another rank."""
    with pytest.raises(CollectiveMismatchError, match=r"float32\[3\] does not fit into float32\[2\]"):
        dist.scatter(torch.zeros(2), [torch.ones(3)] * 4 if rank == 0 else None, src=0)
    with pytest.raises(CollectiveMismatchError, match=r"float32\[2\] does not fit into float32\[3\]"):
        dist.gather(torch.zeros(2), [torch.ones(3)] * 4 if rank == 0 else None, dst=0)
    sizes = [2 if rank == 1 else 1, 1, 1, 1]
    with pytest.raises(CollectiveMismatchError, match="from rank 1 of the group to rank 0"):
        dist.all_to_all_single(torch.zeros(4), torch.zeros(sum(sizes)), [1] * 4, sizes)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "ReduceOp.BAND is not defined for float32"),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG), "AVG is not defined for bool"),
        (lambda: dist.all_reduce(torch.ones(2).to_sparse()), "layout torch.sparse_coo cannot be reduced"),
        (lambda: dist.all_gather([torch.ones(2)] * 3, torch.ones(2)), "3 tensors in a group of 4"),
        (lambda: dist.all_gather([torch.ones(3)] * 4, torch.ones(2)), "does not fit into"),
        (lambda: default_group().all_gather_single(torch.ones(7), torch.ones(2)), "holds one input per rank"),
        (lambda: default_group().reduce_scatter_single(torch.ones(2), torch.ones(7)), "holds one output per rank"),
        (lambda: dist.all_to_all_single(torch.ones(6), torch.ones(6)), "cannot be cut into equal parts"),
        (lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1, 1], [1] * 4), "one size per rank"),
        (lambda: default_group().broadcast(torch.ones(2), 4), "its ranks are 0 to 3"),
        (lambda: default_group().send([torch.ones(2)], 9, 0), "its ranks are 0 to 3"),
        (lambda: default_group().split_group([0, 0]), "each once"),
        (lambda: default_group().reduce([torch.ones(2)] * 2), "2 tensors; expected one"),
        (lambda: default_group().allreduce_coalesced([]), "no tensors to reduce"),
        (lambda: default_group().allreduce(torch.ones(2), dist.ReduceOp.PREMUL_SUM), "PREMUL_SUM without a factor"),
        (lambda: default_group().all_gather_single_coalesced([torch.ones(4)], []), "1 outputs and 0 inputs"),
        (lambda: default_group().reduce_scatter_single_coalesced([], [torch.ones(4)]), "0 outputs and 1 inputs"),
        (lambda: default_group().allgather_coalesced([], [torch.ones(4)]), "expected a list of outputs for each rank"),
        (lambda: default_group().allgather_coalesced([[]] * 4, [torch.ones(4)]), "0 outputs and 1 inputs"),
    ],
)
@on_threads()
def test_a_bad_call_is_an_error_of_the_rank_that_makes_it(rank: int, call: Callable[[], object], text: str) -> None:
    """The other ranks see no error, and the group can still be used."""
    if rank == 1:
        with pytest.raises(ValueError, match=text.replace("[", r"\[")):
            call()
    dist.barrier()


@on_threads(2)
def test_an_error_of_torch_in_a_move_is_an_error_on_every_rank(rank: int) -> None:
    """Also for the ranks whose own tensors are usable."""
    # Its two elements share one memory location, and torch refuses to write to such a tensor.
    tensor = torch.zeros(1).expand(2) if rank else torch.ones(2)
    with pytest.raises(CollectiveError, match="Collective #1 of the default group failed"):
        dist.broadcast(tensor, src=0)


@on_threads(2)
def test_only_the_work_of_a_receive_has_a_source_rank(rank: int) -> None:
    """Any number that the other works returned would be wrong."""
    works = [dist.all_reduce(torch.ones(1), async_op=True), dist.isend(torch.ones(1), rank)]
    dist.recv(torch.ones(1), rank)
    for work in works:
        assert work is not None
        work.wait()
        with pytest.raises(UsageError, match="Only a receive has a source rank"):
            work.source_rank()
