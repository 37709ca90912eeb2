"""Each rank has its own torch.distributed state, and the process gets its own back when the ranks have ended."""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, _resolve_process_group
from torch.distributed import distributed_c10d

from dist_testing.core.ground.backends import backends
from dist_testing.core.ground.errors import PeerFailedError, UsageError
from dist_testing.core.launch.isolation import (
    FORK,
    POOL,
    Isolation,
    check_isolation,
    default_isolation,
    isolation_names,
)
from dist_testing.core.pytest.options import ISOLATIONS
from dist_testing.threaded import THREAD
from dist_testing.threaded.members import current_member
from dist_testing.threaded.thread_world import run_on_threads
from tests.threaded.worlds_of_threads import LIMIT_S, default_group, errors_of, on_threads, pass_on_threads, with_group


def process_state() -> list[Any]:
    """Return the state of the process that a world of threads changes while it is alive."""
    world = distributed_c10d._world
    return [
        world,
        type(world),
        world.default_pg,
        dict(world.pg_map),
        world.group_count,
        dict(dist.Backend._plugins),
        threading.Thread.start,
        sys.excepthook,
        dist.is_initialized(),
        torch.is_grad_enabled(),
        torch._C._is_multithreading_enabled(),
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_each_rank_sees_its_own_world_and_the_process_sees_its_own(fails: bool) -> None:
    """A test that runs threads must not disturb those after it, also if a rank fails and destroys no group."""
    # The first run registers the backend's name with torch, for the rest of the process.
    run_on_threads(lambda rank: None, 1, timeout_s=LIMIT_S)
    before = process_state()

    def body(rank: int) -> None:
        assert (rank, 4) == (dist.get_rank(), dist.get_world_size())
        assert "threaded" == dist.get_backend()
        member = current_member()
        assert member is not None
        assert (rank, 4) == (member.rank, member.world.size)
        dist.new_group([0, 1])
        assert 2 == dist.get_pg_count()
        if fails and rank == 1:
            raise SystemExit(1)
        dist.barrier()

    assert [type(error) for error in errors_of(body)] == (
        [PeerFailedError, SystemExit, PeerFailedError, PeerFailedError] if fails else [type(None)] * 4
    )
    assert before == process_state()
    assert current_member() is None


def test_a_process_keeps_its_own_group_beside_a_world() -> None:
    """The thread that runs the world is not a rank of it, and keeps its default group."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        own = default_group()
        seen: list[object] = []

        def body(rank: int) -> None:
            seen.append(dist.get_world_size())

        pass_on_threads(body, 3)
        assert [3] * 3 == seen
        assert own is dist.group.WORLD
        assert own is _resolve_process_group(default_group().group_name)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_a_rank_without_a_default_group_can_make_it() -> None:
    """With a store of the test's own, twice, and for groups that only some threads share."""
    store = HashStore()
    pairs = [HashStore(), HashStore()]

    def body(rank: int) -> None:
        assert not dist.is_initialized()
        for _ in range(2):
            dist.init_process_group("threaded", store=store, rank=rank, world_size=4)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert 4 == tensor.item()
            dist.destroy_process_group()
        dist.init_process_group("threaded", store=pairs[rank // 2], rank=rank % 2, world_size=2)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        assert [1, 1, 5, 5][rank] == tensor.item()

    pass_on_threads(body, init=False)


def test_two_threads_that_are_both_rank_0_of_a_store_are_in_two_groups() -> None:
    """In one group, each would take part in the collectives of the other."""
    store = HashStore()
    both_are_ready = threading.Barrier(2)

    def body(rank: int) -> None:
        other_store = PrefixStore("x", store)
        dist.init_process_group("threaded", store=other_store, rank=0, world_size=1)
        both_are_ready.wait(LIMIT_S)

    outcomes = run_on_threads(body, 2, timeout_s=LIMIT_S)
    # When rank 0 of a store creates a group again, that is a new group: here, two groups of one rank each.
    assert [None, None] == [outcome.error for outcome in outcomes]


@pytest.mark.parametrize("given", [4, -1])
@on_threads(1, init=False)
def test_a_rank_outside_of_its_world_is_refused(rank: int, given: int) -> None:
    """c10d passes any number to the backend."""
    with pytest.raises((UsageError, AssertionError)):
        dist.init_process_group("threaded", store=HashStore(), rank=given, world_size=2)


def test_a_group_with_other_sizes_on_its_ranks_is_refused() -> None:
    """One rank passes a larger world_size than the other."""
    store = HashStore()
    turn = threading.Event()

    def body(rank: int) -> None:
        if rank == 0:
            dist.init_process_group("threaded", store=store, rank=0, world_size=2)
            turn.set()
        else:
            assert turn.wait(LIMIT_S)
            with pytest.raises(UsageError, match="ranks 0, 1, 2 on one rank and ranks 0, 1 on another"):
                dist.init_process_group("threaded", store=store, rank=1, world_size=3)

    pass_on_threads(body, 2, init=False)


def test_outside_of_a_world_the_backend_is_refused_with_a_way_out() -> None:
    """A user who selects the backend for ranks that are processes reads what to do instead."""
    ended = _child(
        """
        import torch.distributed as dist
        from dist_testing.threaded import group

        try:
            group.create_group(dist.distributed_c10d._DistributedBackendOptions())
        except group.UsageError as error:
            print(error)
        """
    )
    assert 'Backend "threaded" was requested outside of a world of threads' in ended
    assert 'isolation="thread"' in ended


@pytest.mark.parametrize("order", ["torch first", "ours first", "torch inside"])
def test_torchs_own_threaded_group_works_as_before_and_after(order: str) -> None:
    """Both groups have the same backend name: it means ours inside a world of ours, and torch's outside."""
    torchs = "import torch.testing._internal.distributed.multi_threaded_pg as torchs"
    ours = (
        "from dist_testing.threaded.thread_world import run_on_threads; "
        "run_on_threads(lambda rank: None, 2, timeout_s=60)"
    )
    first = {"torch first": torchs, "ours first": ours, "torch inside": ""}[order]
    ended = _child(
        f"""
        import threading
        import torch
        import torch.distributed as dist
        {first}
        from dist_testing.threaded.thread_world import run_on_threads
        from tests.threaded.worlds_of_threads import with_group

        def body(rank):
            {torchs}
            assert type(dist.group.WORLD).__module__.startswith("dist_testing"), type(dist.group.WORLD)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor.item() == 2

        for outcome in run_on_threads(with_group(body, 2), 2, timeout_s=60):
            assert outcome.error is None, outcome
        {torchs}

        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        torchs._install_threaded_pg()
        store = dist.HashStore()

        def run(rank):
            dist.init_process_group("threaded", rank=rank, world_size=2, store=store)
            assert type(dist.group.WORLD) is torchs.ProcessLocalGroup
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            results.append(tensor.item())
            dist.destroy_process_group()

        results = []
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torchs._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        assert results == [2, 2], results

        for outcome in run_on_threads(with_group(body, 2), 2, timeout_s=60):
            assert outcome.error is None, outcome
        print("all passed")
        """
    )
    assert "all passed" in ended


def _child(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=4 * LIMIT_S,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@on_threads()
def test_threads_that_a_rank_starts_belong_to_the_rank(rank: int) -> None:
    """As in a process, they see the rank's groups and can use them."""
    group = dist.group.WORLD
    found: list[float] = []

    def use(given: dist.ProcessGroup | None) -> None:
        assert rank == dist.get_rank()
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=given)
        found.append(tensor.item())

    for given in (None, group):
        thread = threading.Thread(target=use, args=(given,))
        thread.start()
        thread.join()
    with pytest.raises(RuntimeError, match="started once"):
        thread.start()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(use, None).result()
    assert [4.0] * 3 == found


def test_a_thread_that_starts_at_the_second_try_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If its end counted twice, the world would find a deadlock while a thread of it still runs."""
    before = threading.Thread.start
    is_full = True

    def start(thread: threading.Thread) -> None:
        if is_full and thread.name == "second try":
            raise RuntimeError("can't start new thread")
        before(thread)

    monkeypatch.setattr(threading.Thread, "start", start)

    def body(rank: int) -> None:
        nonlocal is_full
        member = current_member()
        assert member is not None
        thread = threading.Thread(target=lambda: None, name="second try")
        with pytest.raises(RuntimeError, match="can't start"):
            thread.start()
        assert 1 == member.threads
        is_full = False
        thread.start()
        thread.join()
        assert 1 == member.threads

    pass_on_threads(body, 1)


def test_a_process_that_a_rank_forks_can_start_threads() -> None:
    """If this fails, a DataLoader with workers hangs if another rank makes a call at the moment of the fork."""
    begun, is_held, has_ended = (threading.Event() for _ in range(3))

    def fork() -> int:
        assert is_held.wait(LIMIT_S)
        if (pid := os.fork()) == 0:
            signal.alarm(20)
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def body(rank: int) -> None:
        member = current_member()
        assert member is not None
        if rank == 0:
            assert begun.wait(LIMIT_S)
            with member.world:
                is_held.set()
                assert has_ended.wait(LIMIT_S)
        else:
            begun.set()
            try:
                assert fork() == 7
            finally:
                has_ended.set()

    pass_on_threads(body, 2)


@on_threads(3)
def test_a_world_can_run_inside_of_a_rank(rank: int) -> None:
    """The test that runs on a rank may itself run a world of threads."""

    def inner(inner_rank: int) -> None:
        assert (inner_rank, 2) == (dist.get_rank(), dist.get_world_size())
        dist.barrier()

    pass_on_threads_inside = run_on_threads(with_group(inner, 2), 2, timeout_s=LIMIT_S)
    assert [None, None] == [outcome.error for outcome in pass_on_threads_inside]
    assert (rank, 3) == (dist.get_rank(), dist.get_world_size())
    dist.barrier()


def test_worlds_can_run_side_by_side() -> None:
    """No state of one world is visible in another."""

    def run(size: int) -> list[object]:
        def body(rank: int) -> None:
            for _ in range(20):
                tensor = torch.ones(1)
                dist.all_reduce(tensor)
                assert size == tensor.item()

        return [outcome.error for outcome in run_on_threads(with_group(body, size), size, timeout_s=LIMIT_S)]

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert [[None] * size for size in (2, 3, 4)] == list(pool.map(run, (2, 3, 4)))
    assert not dist.is_initialized()


@pytest.mark.parametrize(("isolation", "backend"), [(THREAD, "gloo"), (FORK, "threaded"), (POOL, "threaded")])
def test_ranks_that_the_backend_cannot_connect_are_refused(isolation: Isolation, backend: str) -> None:
    """Gloo ranks that are threads of one process would hang or corrupt each other's state."""
    with pytest.raises(UsageError) as caught:
        check_isolation("test_x", backends()[backend], isolation)
    text = str(caught.value)
    assert f'test_x: isolation "{isolation.name}" with backend "{backend}"' in text
    assert f'isolation "{default_isolation(backends()[backend]).name}"' in text
    of_threads = [name for name, declared in backends().items() if declared.in_process]
    assert (f"Use a backend of threads ({', '.join(of_threads)})" in text) == isolation.in_process


def test_the_help_names_every_isolation() -> None:
    """If this fails, a user does not learn of an isolation. The text is fixed, because the table loads late."""
    assert re.findall(r"\w+", ISOLATIONS.replace(" or ", " ")) == list(isolation_names())
