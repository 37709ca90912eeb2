"""Calls that fail, futures, and the order of ranks. The conformance kit has the calls that succeed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist_testing.core.ground.errors import CollectiveError, CollectiveMismatchError, PeerFailedError, UsageError
from dist_testing.threaded.thread_world import ORDER_VARIABLE, run_on_threads
from tests.threaded.worlds_of_threads import LIMIT_S, default_group, errors_of, on_threads, pass_on_threads


def given(work: dist.Work | None) -> dist.Work:
    """Return the work, which c10d does not return to ranks outside of the group."""
    assert work is not None
    return work


@pytest.mark.parametrize("taken", [torch.zeros(3), torch.zeros(2, dtype=torch.int64)], ids=["size", "dtype"])
@on_threads(2)
def test_a_send_that_does_not_fit_its_receive_is_an_error_on_both(rank: int, taken: torch.Tensor) -> None:
    """Real groups may write past the end of the output, or cut the value off."""
    with pytest.raises(CollectiveMismatchError, match=r"float32\[2\] does not fit into") as caught:
        dist.send(torch.ones(2), 1) if rank == 0 else dist.recv(taken, 0)
    assert "rank 0: send(to rank 1" in str(caught.value)
    assert "rank 1: recv(from rank 0" in str(caught.value)


@on_threads(2)
def test_a_work_that_failed_keeps_its_error(rank: int) -> None:
    """Every wait raises it, and so does the future."""
    tensor = torch.ones(1)
    work = given(dist.all_reduce(tensor, async_op=True) if rank else dist.reduce(tensor, dst=0, async_op=True))
    future = work.get_future()
    for wait in (work.wait, work.wait, future.wait):
        with pytest.raises(CollectiveMismatchError):
            wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), CollectiveMismatchError)


def test_a_function_chained_to_a_future_belongs_to_the_rank_that_chained_it() -> None:
    """If this fails, it sees another rank; or, as one of PowerSGD's, it waits on the only thread that could wake it."""
    seen: list[tuple[int, int, float]] = []

    def body(rank: int) -> None:
        def chained(future: Any) -> None:
            total = given(dist.all_reduce(future.value()[0], async_op=True)).get_future().wait()[0]
            seen.append((rank, dist.get_rank(), total.item()))

        work = given(dist.all_reduce(torch.ones(1), async_op=True))
        work.get_future().then(chained).wait()

    pass_on_threads(body)
    assert [(rank, rank, 16) for rank in range(4)] == sorted(seen)


def test_a_future_is_woken_by_another_ranks_failure() -> None:
    """Also a future made by `then`, whose wait is in C++."""

    def body(rank: int) -> None:
        work = given(dist.all_reduce(torch.ones(1), async_op=True)) if rank else None
        if rank == 0:
            raise ValueError("the culprit")
        assert work is not None
        work.get_future().then(lambda future: future.value()).wait()

    errors = errors_of(body, 2)
    assert isinstance(errors[0], ValueError)
    assert "Rank 0 has failed" in str(errors[1])


def test_a_rank_that_polls_gives_way_in_rank_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a rank that polls would keep the only turn for good."""

    def body(rank: int) -> None:
        work = given(dist.all_reduce(torch.ones(1), async_op=True))
        while not work.is_completed():
            pass

    monkeypatch.setenv(ORDER_VARIABLE, "ranks")
    pass_on_threads(body, 3)


def test_ranks_can_run_one_at_a_time_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who looks for an error that depends on the interleaving needs the same one in every run."""
    monkeypatch.setenv(ORDER_VARIABLE, "ranks")

    def run() -> list[str]:
        notes: list[str] = []

        def body(rank: int) -> None:
            for number in range(3):
                notes.append(f"{number}:{rank}")
                dist.barrier()
            if rank:
                dist.send(torch.tensor([rank]), 0)
            else:
                tensor = torch.zeros(1, dtype=torch.int64)
                notes.extend(f"from {dist.recv(tensor)}" for _ in range(3))

        pass_on_threads(body)
        return notes

    first = run()
    assert ["0:0", "0:1", "0:2", "0:3"] == first[:4]
    assert ["from 1", "from 2", "from 3"] == first[12:]
    for _ in range(5):
        assert first == run()


def test_a_failure_in_rank_order_still_frees_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also ranks that have not had their first turn."""

    def body(rank: int) -> None:
        if rank == 0:
            raise ValueError("the first of all")
        dist.barrier()

    monkeypatch.setenv(ORDER_VARIABLE, "ranks")
    assert [ValueError, PeerFailedError, PeerFailedError] == [type(error) for error in errors_of(body, 3)]


def test_an_unknown_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error in the variable must not silently select another order."""
    monkeypatch.setenv(ORDER_VARIABLE, "rank")
    with pytest.raises(UsageError, match=f"{ORDER_VARIABLE}='rank' in the environment"):
        run_on_threads(lambda rank: None, 2, timeout_s=LIMIT_S)


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
    """The other ranks see no error, and the group can still be used. Tests for gloo or NCCL expect either class."""
    if rank == 1:
        with pytest.raises(RuntimeError, match=text.replace("[", r"\[")) as caught:
            call()
        assert isinstance(caught.value, ValueError)
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
