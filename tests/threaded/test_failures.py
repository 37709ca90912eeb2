"""What cannot be completed ends at once, with an error that says who waits for whom, where."""

from __future__ import annotations

import threading
import time
import unittest
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dist_testing.errors import (
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DeadlockError,
    LaunchError,
    PeerFailedError,
    UsageError,
)
from dist_testing.threaded.world import fail_world, run_on_threads
from tests.threaded.worlds_of_threads import LIMIT_S, default_group, errors_of, pass_on_threads

HERE = Path(__file__).name


def lines_of(error: BaseException | None, rank: int) -> list[str]:
    """What an error says of a rank."""
    return [line for line in str(error).splitlines() if f"rank {rank}" in line]


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
    """A group that does not look would give wrong numbers, or hang."""
    of_most, of_one, most_say, one_says = MISMATCHES[kind]

    def body(rank: int) -> None:
        dist.barrier()
        with pytest.raises(CollectiveMismatchError) as caught:
            (of_one if rank == 2 else of_most)()  # type: ignore[no-untyped-call]  # torch's barrier
        assert "Collective #1 of the default group: the calls of its ranks differ" in str(caught.value)
        (line,) = lines_of(caught.value, 2)
        assert one_says in line
        assert HERE in line
        assert any(most_say in other for other in str(caught.value).splitlines() if other != line)
        # The group goes on: the collective is over for all of them.
        dist.barrier()

    pass_on_threads(body)


def test_parts_that_do_not_fit_are_an_error_on_every_rank() -> None:
    """Sizes that one rank cannot see: what another one has for it."""

    def body(rank: int) -> None:
        with pytest.raises(CollectiveMismatchError, match=r"float32\[3\] does not fit into float32\[2\]"):
            dist.scatter(torch.zeros(2), [torch.ones(3)] * 4 if rank == 0 else None, src=0)
        with pytest.raises(CollectiveMismatchError, match=r"float32\[2\] does not fit into float32\[3\]"):
            dist.gather(torch.zeros(2), [torch.ones(3)] * 4 if rank == 0 else None, dst=0)
        sizes = [2 if rank == 1 else 1, 1, 1, 1]
        with pytest.raises(CollectiveMismatchError, match="from rank 1 of the group to rank 0"):
            dist.all_to_all_single(torch.zeros(4), torch.zeros(sum(sizes)), [1] * 4, sizes)

    pass_on_threads(body)


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
    ],
)
def test_a_bad_call_is_an_error_of_the_rank_that_makes_it(call: Callable[[], object], text: str) -> None:
    """Nobody else learns of it, and the group is as before."""

    def body(rank: int) -> None:
        if rank == 1:
            with pytest.raises(ValueError, match=text.replace("[", r"\[")):
                call()
        dist.barrier()

    pass_on_threads(body)


def test_ranks_that_wait_for_each_other_are_told_who_waits_for_whom() -> None:
    """At once: this test would run into its limit otherwise."""

    def body(rank: int) -> None:
        tensor = torch.ones(2)
        if rank == 0:
            dist.recv(tensor, 1, tag=7)
        elif rank == 1:
            dist.send(tensor, 2)
        else:
            dist.barrier()

    errors = errors_of(body, 3)
    assert [DeadlockError] * 3 == [type(error) for error in errors]
    for error in errors:
        assert "Deadlock: all 3 ranks of the world wait" in str(error)
        assert "rank 0: waiting for rank 1 to send in recv(from rank 1, tag 7, float32[2])" in str(error)
        assert "rank 1: waiting for rank 2 to receive in send(to rank 2" in str(error)
        assert "rank 2: waiting for ranks 0 and 1 in barrier()" in str(error)
        assert 3 == str(error).count(f"{HERE}:")


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    """Also while others still run, whom the wait does not concern."""
    go_on = threading.Event()

    def body(rank: int) -> None:
        if rank == 0:
            try:
                with pytest.raises(DeadlockError) as caught:
                    dist.all_reduce(torch.ones(1))
            finally:
                go_on.set()
            assert "rank 1 has ended" in str(caught.value)
            assert "rank 0: all_reduce(SUM, float32[1])" in str(caught.value)
        elif rank == 2:
            assert go_on.wait(LIMIT_S)

    pass_on_threads(body, 3)


@pytest.mark.parametrize("is_send", [True, False])
def test_a_peer_that_has_ended_ends_a_transfer(is_send: bool) -> None:
    """Before it began, and while it waits."""

    def body(rank: int) -> None:
        if rank == 1:
            return
        for _ in range(2):
            with pytest.raises(DeadlockError, match="Rank 1 has ended"):
                (dist.send if is_send else dist.recv)(torch.ones(1), 1)

    pass_on_threads(body, 2)


def test_threads_that_a_rank_started_are_not_taken_for_a_deadlock() -> None:
    """A rank may wait for what a thread of another rank will send."""
    go_on = threading.Event()

    def body(rank: int) -> None:
        def send_late() -> None:
            assert go_on.wait(LIMIT_S)
            assert 0 == dist.get_rank()
            dist.send(torch.ones(1), 1)

        if rank == 0:
            thread = threading.Thread(target=send_late)
            thread.start()
            work = dist.irecv(torch.ones(1), 1)
            assert work is not None
            go_on.set()
            work.wait()
            thread.join()
        else:
            dist.recv(torch.ones(1), 0)
            dist.send(torch.ones(1), 0)

    pass_on_threads(body, 2)


def test_a_deadlock_is_seen_when_the_last_thread_of_a_rank_ends() -> None:
    """Until then somebody could have sent."""
    go_on = threading.Event()

    def body(rank: int) -> None:
        if rank == 0:
            thread = threading.Thread(target=go_on.wait, args=(LIMIT_S,))
            thread.start()
            threading.Timer(0.05, go_on.set).start()
        dist.recv(torch.ones(1), 1 - rank)

    errors = errors_of(body, 2)
    assert [DeadlockError, DeadlockError] == [type(error) for error in errors]


def test_a_deadlock_that_a_test_expects_leaves_the_group_usable() -> None:
    """Who caught it can go on with the others."""

    def body(rank: int) -> None:
        with pytest.raises(DeadlockError):
            dist.recv(torch.ones(1), 1 - rank)
        dist.barrier()
        tensor = torch.tensor([float(rank)])
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        assert 0 == tensor.item()

    pass_on_threads(body, 2)


@pytest.mark.parametrize("culprit", [0, 1, 3])
def test_a_rank_that_fails_wakes_the_others_and_is_named(culprit: int) -> None:
    """They are victims; the failure itself keeps its traceback."""

    def body(rank: int) -> None:
        dist.barrier()
        if rank == culprit:
            raise KeyError("of the culprit")
        dist.all_reduce(torch.ones(2))

    outcomes = run_on_threads(body, 4, timeout_s=LIMIT_S)
    for outcome in outcomes:
        if outcome.rank == culprit:
            assert not outcome.is_victim
            assert isinstance(outcome.error, KeyError)
            assert outcome.error.__traceback__ is not None
        else:
            assert outcome.is_victim
            assert f"Rank {culprit} has failed: KeyError: 'of the culprit'" in str(outcome.error)
            assert "This rank's call: all_reduce(SUM, float32[2])" in str(outcome.error)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), unittest.SkipTest("no"), GeneratorExit()], ids=repr
)
def test_whatever_a_body_ends_with_is_its_outcome(error: BaseException) -> None:
    """Nothing of it reaches the thread that runs the world."""

    def body(rank: int) -> None:
        if rank == 1:
            raise error
        dist.barrier()

    errors = errors_of(body, 2)
    assert error is errors[1]
    assert isinstance(errors[0], PeerFailedError)


def test_calls_after_a_failure_fail_too() -> None:
    """A rank that did not wait when another one failed learns of it at its next call."""
    has_failed = threading.Event()

    def body(rank: int) -> None:
        if rank == 1:
            fail_world(ValueError("told before the end"))
            has_failed.set()
            return
        assert has_failed.wait(LIMIT_S)
        with pytest.raises(PeerFailedError, match="Rank 1 has failed: ValueError: told before the end"):
            dist.all_reduce(torch.ones(1))
        with pytest.raises(PeerFailedError):
            dist.isend(torch.ones(1), 1)

    pass_on_threads(body, 2)


def test_a_groups_time_limit_names_who_is_missing() -> None:
    """The last resort: a rank that does something else, and for too long."""
    go_on = threading.Event()

    def body(rank: int) -> None:
        group = dist.new_group(timeout=timedelta(seconds=0.1))
        if rank == 2:
            assert go_on.wait(LIMIT_S)
            with pytest.raises(CollectiveTimeoutError):
                dist.barrier(group)
            return
        try:
            with pytest.raises(CollectiveTimeoutError) as caught:
                dist.barrier(group)
        finally:
            go_on.set()
        assert "in 0.1 s" in str(caught.value)
        assert f"rank 2: running {HERE}" in str(caught.value).replace(f"{Path(__file__).parent}/", "")

    pass_on_threads(body, 3)


def test_the_limit_of_one_wait_does_not_end_the_operation() -> None:
    """As c10d has it: the work goes on, and can be waited for again."""
    go_on = threading.Event()

    def body(rank: int) -> None:
        tensor = torch.ones(1)
        if rank == 1:
            assert go_on.wait(LIMIT_S)
            dist.all_reduce(tensor)
            return
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        with pytest.raises(CollectiveTimeoutError):
            work.wait(timedelta(milliseconds=10))
        assert not work.is_completed()
        go_on.set()
        work.wait()
        assert 2 == tensor.item()

    pass_on_threads(body, 2)


def test_monitored_barrier_names_the_missing_rank() -> None:
    """On the group itself; torch's function of that name knows gloo only."""
    go_on = threading.Event()

    def body(rank: int) -> None:
        if rank == 1:
            assert go_on.wait(LIMIT_S)
            return
        try:
            with pytest.raises(CollectiveTimeoutError, match=r"for rank 1 in monitored_barrier\(\)"):
                default_group().monitored_barrier(timedelta(seconds=0.05))
        finally:
            go_on.set()

    pass_on_threads(body, 2)


def test_a_rank_that_hangs_is_told_with_its_stack() -> None:
    """The run ends at its deadline; who waited for the rank is told with what it waits for."""
    go_on = threading.Event()

    def hang_here() -> None:
        go_on.wait(LIMIT_S)

    def body(rank: int) -> None:
        if rank == 0:
            hang_here()
        else:
            dist.barrier()

    started_s = time.monotonic()
    outcomes = run_on_threads(body, 2, timeout_s=0.5)
    assert [None, None] == [outcome.error for outcome in outcomes]
    assert "hang_here" in outcomes[0].stack
    assert "waiting for rank 0 in barrier()" in outcomes[1].stack
    assert LIMIT_S > time.monotonic() - started_s
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("rank-"):
            thread.join(LIMIT_S)
    assert not dist.is_initialized()


def test_a_rank_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines limit threads; those that did start do not wait for the rest."""
    before = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "rank-2":
            raise RuntimeError("can't start new thread")
        before(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    errors = errors_of(lambda rank: dist.barrier(), 4)
    assert "rank 2 of 4 cannot be started: can't start new thread" in str(errors[2])
    assert isinstance(errors[2], LaunchError)
    assert isinstance(errors[3], LaunchError)
    assert [PeerFailedError] * 2 == [type(error) for error in errors[:2]]


def test_after_a_failure_others_have_little_time() -> None:
    """A rank that never calls its group does not keep the verdict until the deadline."""
    go_on = threading.Event()

    def body(rank: int) -> None:
        if rank == 0:
            raise ValueError("at once")
        go_on.wait(LIMIT_S)

    outcomes = run_on_threads(body, 2, timeout_s=LIMIT_S, grace_s=0.05)
    go_on.set()
    assert isinstance(outcomes[0].error, ValueError)
    assert "go_on.wait" in outcomes[1].stack or "in wait" in outcomes[1].stack


@pytest.mark.parametrize(("world_size", "timeout_s"), [(0, 1.0), (-1, 1.0), (5000, 1.0), (2, 0.0), (2, float("nan"))])
def test_a_run_refuses_what_cannot_be(world_size: int, timeout_s: float) -> None:
    """No traceback out of the middle, and no world of nobody that passes."""
    with pytest.raises(UsageError):
        run_on_threads(lambda rank: None, world_size, timeout_s=timeout_s)


def test_a_group_that_was_destroyed_says_so() -> None:
    """Kept groups are a common slip."""

    def body(rank: int) -> None:
        group = default_group()
        dist.destroy_process_group()
        with pytest.raises(UsageError, match=r"which rank \d has destroyed"):
            group.allreduce([torch.ones(1)])

    pass_on_threads(body, 2)


def test_a_failed_collective_is_an_error_where_nothing_better_is_known() -> None:
    """What torch refuses while the data are moved is told on all ranks."""

    def body(rank: int) -> None:
        # Two elements in one place: torch does not write to them.
        tensor = torch.zeros(1).expand(2) if rank else torch.ones(2)
        with pytest.raises(CollectiveError, match="Collective #0 of the default group failed"):
            dist.broadcast(tensor, src=0)

    pass_on_threads(body, 2)
