"""Calls that fail, futures, and the order of ranks. The conformance kit has the calls that succeed."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dist_testing.core.ground.errors import CollectiveMismatchError, PeerFailedError, UsageError
from dist_testing.threaded.thread_world import ORDER_VARIABLE, run_on_threads
from tests.threaded.worlds_of_threads import LIMIT_S, errors_of, on_threads, pass_on_threads


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
    """It runs on the thread of the last rank that calls, but sees its own rank."""
    seen: list[tuple[int, int]] = []

    def body(rank: int) -> None:
        work = given(dist.all_reduce(torch.ones(1), async_op=True))
        chained = work.get_future().then(lambda _: seen.append((rank, dist.get_rank())))
        chained.wait()

    pass_on_threads(body)
    assert [(rank, rank) for rank in range(4)] == sorted(seen)


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
