"""A wait that cannot end is an error at once, with a text that names the waiting and the missing ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
import unittest
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist_testing.core.ground.errors import (
    CollectiveTimeoutError,
    DeadlockError,
    LaunchError,
    PeerFailedError,
    UsageError,
)
from dist_testing.threaded import thread_world
from dist_testing.threaded.thread_world import fail_world, run_on_threads
from tests.threaded.worlds_of_threads import LIMIT_S, default_group, errors_of, on_threads, pass_on_threads, with_group

HERE = Path(__file__).name


def test_ranks_that_wait_for_each_other_get_an_error_with_all_waits() -> None:
    """The error comes at once; otherwise this test would run into its time limit."""

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
        assert "rank 2: waiting for ranks 0, 1 in barrier()" in str(error)
        assert 3 == str(error).count(f"{HERE}:")


@on_threads(4)
def test_a_collective_fails_when_a_rank_has_ended_without_it(rank: int, go_on: threading.Event) -> None:
    """Also while other ranks, which the wait does not need, still run. The text has ranks of the default group."""
    group = dist.new_group([1, 2, 3])
    if rank == 1:
        try:
            with pytest.raises(DeadlockError) as caught:
                dist.all_reduce(torch.ones(1), group=group)
        finally:
            go_on.set()
        first, *rest = str(caught.value).splitlines()
        assert first.startswith("Collective #1 of group '1' of ranks 1, 2, 3 can never complete: rank 2 has ended")
        assert rest[0].startswith("  rank 1: all_reduce(SUM, float32[1]) at ")
        assert rest[1:3] == ["  no call yet: ranks 2, 3", "Most likely that rank makes fewer calls than the others."]
    elif rank != 2:
        assert go_on.wait(LIMIT_S)


@pytest.mark.parametrize("is_send", [True, False])
@on_threads(2)
def test_a_peer_that_has_ended_ends_a_transfer(rank: int, is_send: bool) -> None:
    """A transfer that starts after the peer's end fails, and so does one that waits at that time."""
    if rank == 1:
        return
    for _ in range(2):
        with pytest.raises(DeadlockError, match="Rank 1 has ended"):
            (dist.send if is_send else dist.recv)(torch.ones(1), 1)


@on_threads(2)
def test_a_rank_whose_own_threads_still_run_is_in_no_deadlock(rank: int, go_on: threading.Event) -> None:
    """A rank may wait for a send that a second thread of another rank will make."""

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


def test_a_deadlock_is_detected_when_the_last_thread_of_a_rank_ends() -> None:
    """Until then that thread could have made the missing call."""
    go_on = threading.Event()

    def body(rank: int) -> None:
        if rank == 0:
            thread = threading.Thread(target=go_on.wait, args=(LIMIT_S,))
            thread.start()
            threading.Timer(0.05, go_on.set).start()
        dist.recv(torch.ones(1), 1 - rank)

    errors = errors_of(body, 2)
    assert [DeadlockError, DeadlockError] == [type(error) for error in errors]


@pytest.mark.parametrize("of_group", [True, False])
@on_threads(3)
def test_a_wait_with_a_limit_of_its_own_is_in_no_deadlock(rank: int, of_group: bool) -> None:
    """If this fails, a test of a time limit fails on ranks that wait for the one that tries it."""
    limit = timedelta(seconds=0.05)
    group = dist.new_group([0, 2], timeout=limit if of_group else None)
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        assert work is not None
        with pytest.raises(CollectiveTimeoutError):
            work.wait(*([] if of_group else [limit]))
    dist.barrier()


@on_threads(2)
def test_a_deadlock_that_a_test_expects_leaves_the_group_usable(rank: int) -> None:
    """A test that catches the error can continue with the same group."""
    with pytest.raises(DeadlockError):
        dist.recv(torch.ones(1), 1 - rank)
    dist.barrier()
    tensor = torch.tensor([float(rank)])
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    assert 0 == tensor.item()


@pytest.mark.parametrize("culprit", [0, 1, 3])
def test_a_rank_that_fails_wakes_the_others_and_is_named(culprit: int) -> None:
    """The other ranks are victims; the failure itself keeps its traceback."""

    def body(rank: int) -> None:
        dist.barrier()
        if rank == culprit:
            raise KeyError("of the culprit")
        dist.all_reduce(torch.ones(2))

    for rank, error in enumerate(errors_of(body, 4)):
        if rank == culprit:
            assert isinstance(error, KeyError)
            assert error.__traceback__ is not None
        else:
            assert isinstance(error, PeerFailedError)
            assert f"Rank {culprit} has failed: KeyError: 'of the culprit'" in str(error)
            assert "This rank's call: all_reduce(SUM, float32[2])" in str(error)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), unittest.SkipTest("no"), GeneratorExit()], ids=repr
)
def test_every_exception_of_a_body_is_its_outcome(error: BaseException) -> None:
    """None of them reaches the thread that runs the world."""

    def body(rank: int) -> None:
        if rank == 1:
            raise error
        dist.barrier()

    errors = errors_of(body, 2)
    assert error is errors[1]
    assert isinstance(errors[0], PeerFailedError)


def test_calls_after_a_failure_fail_too() -> None:
    """A rank that was in no wait when another rank failed gets the error at its next call."""
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


@pytest.mark.parametrize("name", ["barrier", "monitored_barrier"])
@on_threads(3)
def test_a_groups_time_limit_names_who_is_missing(rank: int, name: str, go_on: threading.Event) -> None:
    """Only the limit can end a wait for a rank that runs other code. torch has monitored_barrier for gloo alone."""
    group: Any = dist.new_group(timeout=timedelta(seconds=0.1))
    meet = group.monitored_barrier if name == "monitored_barrier" else partial(dist.barrier, group)
    if rank == 2:
        assert go_on.wait(LIMIT_S)
        with pytest.raises(CollectiveTimeoutError):
            meet()
        return
    try:
        with pytest.raises(CollectiveTimeoutError, match=rf"waiting for rank.* in {name}\(\)") as caught:
            meet()
    finally:
        go_on.set()
    assert "Time limit of 0.1 s reached" in str(caught.value)
    assert f"rank 2: running {HERE}" in str(caught.value).replace(f"{Path(__file__).parent}/", "")


def test_a_rank_that_hangs_is_reported_with_its_stack() -> None:
    """The run ends at its deadline, and a rank that waited for it is reported with its wait."""
    go_on = threading.Event()

    def hang_here() -> None:
        go_on.wait(LIMIT_S)

    def body(rank: int) -> None:
        if rank == 0:
            hang_here()
        else:
            dist.barrier()

    started_s = time.monotonic()
    outcomes = run_on_threads(with_group(body, 2), 2, timeout_s=0.5)
    assert [None, None] == [outcome.error for outcome in outcomes]
    assert "hang_here" in outcomes[0].stack
    assert "waiting for rank 0 in barrier()" in outcomes[1].stack
    assert LIMIT_S > time.monotonic() - started_s
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("rank-"):
            thread.join(LIMIT_S)
    assert not dist.is_initialized()


def test_ranks_have_ended_when_an_interrupt_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, pytest crashes after Ctrl-C: it parses the source of a traceback while a rank parses another."""
    monkeypatch.setattr(thread_world, "_END_LIMIT_S", LIMIT_S)
    ended: list[int] = []
    begun = threading.Barrier(2)

    def body(rank: int) -> None:
        begun.wait(LIMIT_S)
        try:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGINT)
            dist.recv(torch.ones(1), 1 - rank)
        finally:
            # As long as the text of an error may take.
            time.sleep(0.1)
            ended.append(rank)

    with pytest.raises(KeyboardInterrupt):
        run_on_threads(with_group(body, 2), 2, timeout_s=LIMIT_S)
    assert sorted(ended) == [0, 1]


def test_a_rank_that_cannot_be_started_has_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines limit the number of threads; the ranks that did start do not wait for the others."""
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


def test_after_a_failure_the_other_ranks_have_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that never calls its group does not delay the verdict until the deadline."""
    go_on = threading.Event()

    def body(rank: int) -> None:
        if rank == 0:
            raise ValueError("at once")
        go_on.wait(LIMIT_S)

    monkeypatch.setattr(thread_world, "_PEER_GRACE_S", 0.05)
    outcomes = run_on_threads(body, 2, timeout_s=LIMIT_S)
    go_on.set()
    assert isinstance(outcomes[0].error, ValueError)
    assert "go_on.wait" in outcomes[1].stack or "in wait" in outcomes[1].stack


@on_threads(2)
def test_a_group_that_was_destroyed_says_so(rank: int) -> None:
    """Tests often keep a group by mistake."""
    group = default_group()
    dist.destroy_process_group()
    with pytest.raises(UsageError, match=r"which rank \d has destroyed"):
        group.allreduce([torch.ones(1)])
    with pytest.raises(UsageError, match=r"split_group on .*, which rank \d has destroyed"):
        group.split_group([0])
