"""A suite in the style of projects that start their ranks with `torch.multiprocessing`; it knows no library for that.

`pytest tests/adopt/spawn_suite.py` runs it under its own harness, and with `-p dist_testing.adopt.spawn` on the engine.
"""

# mypy: disable-error-code="attr-defined,no-untyped-call"

from __future__ import annotations

import atexit
import gc
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import warnings
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing import spawn


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


def _setup(rank: int, world_size: int, port: int) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def _all_reduce(rank: int, world_size: int, port: int, sums: torch.Tensor) -> None:
    # A process of torch's function has no variables of a launcher.
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & os.environ.keys()
    _setup(rank, world_size, port)
    value = torch.full((2,), float(rank + 1))
    dist.all_reduce(value)
    sums[rank] = value[0]
    print(f"printed by {rank}")
    dist.destroy_process_group()


def _raises(rank: int, world_size: int, port: int) -> None:
    _setup(rank, world_size, port)
    if rank == 1:
        raise ValueError("planted")
    dist.barrier()


def _exits(rank: int, code: int) -> None:
    if rank == 1:
        os._exit(code)


def _is_killed(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), 9)


def _waits(rank: int) -> None:
    signal.pause()


def _leaves(rank: int) -> None:
    sys.exit(0)


def _puts(rank: int, queue: Any) -> None:
    queue.put(rank)


def _ends_late(rank: int, folder: Path) -> None:
    def note(what: str) -> None:
        (folder / f"{what}-{rank}").touch()

    def wait() -> None:
        # Main threads end before all others.
        threading.main_thread().join()
        note("thread")

    threading.Thread(target=wait).start()
    Finalize(None, note, args=("finaliser",), exitpriority=0)
    atexit.register(note, "handler")


def _ends_as_a_rank(rank: int, world_size: int, port: int, how: str) -> None:
    _setup(rank, world_size, port)
    dist.barrier()
    if rank == 1 and how == "exit":
        os._exit(0)
    if rank == 1 and how == "leave":
        subprocess.Popen(["sleep", "77"])


def _run_ranks(how: str) -> list[int | None]:
    port = _free_port()
    processes = [mp.get_context("spawn").Process(target=_ends_as_a_rank, args=(rank, 2, port, how)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def _dies(queue: Any) -> None:
    os.kill(os.getpid(), 9)


def _leaves_it_to_another(queue: Any) -> None:
    parent = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        select.select([parent], [], [])
        _puts_late(queue)
        queue.close()
        queue.join_thread()
        os._exit(0)


def _puts_late(queue: Any) -> None:
    # Later than the adapter waits for a thread that still writes.
    time.sleep(2)
    queue.put("late")


def _exits_late(connection: Any) -> None:
    sys.exit(connection.recv())


class Registry:
    """What a suite keeps in a module, and a fresh interpreter has anew."""

    changed = False


class Garbage:
    """What only its own process may collect, as an object that waits for its threads. A cycle keeps it until then."""

    def __init__(self) -> None:
        self.own, self.pid = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.pid:
            os.kill(os.getpid(), 9)


def _collect_in_forks(event: str, args: tuple[object, ...]) -> None:
    # Any allocation can start a collection; here, what the interpreter tells its audit hooks does.
    if _collects_in_forks_of and os.getpid() not in _collects_in_forks_of:
        gc.collect()


_collects_in_forks_of: list[int] = []


def _tells_state(queue: Any, folder: Path, values: torch.Tensor) -> None:
    _ends_late(0, folder)
    values += 1
    queue.put((Registry.changed, mp.current_process().name.partition("-")[0]))


def _trains(rank: int, world_size: int, port: int, model: torch.nn.Module) -> None:
    _setup(rank, world_size, port)
    replica = torch.nn.parallel.DistributedDataParallel(model)
    replica(torch.ones(4, 8)).sum().backward()
    assert model.weight.grad is not None
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [1, 3])
def test_all_reduce(world_size: int) -> None:
    sums = torch.zeros(world_size)
    spawn(_all_reduce, args=(world_size, _free_port(), sums), nprocs=world_size)
    # The tensor is in shared memory.
    assert sums.tolist() == [world_size * (world_size + 1) / 2] * world_size


def test_ddp() -> None:
    mp.spawn(_trains, args=(2, _free_port(), torch.nn.Linear(8, 8)), nprocs=2, join=True)


def test_ddp_after_computation() -> None:
    # The threads of OpenMP do not survive a fork.
    torch.ones(1 << 21).sum()
    mp.start_processes(_trains, args=(2, _free_port(), torch.nn.Linear(8, 8)), nprocs=2)


def test_error_is_expected() -> None:
    with pytest.raises(mp.ProcessRaisedException, match="ValueError: planted") as caught:
        mp.spawn(_raises, args=(2, _free_port()), nprocs=2)
    assert caught.value.error_index == 1


def test_exit_is_expected() -> None:
    with pytest.raises(mp.ProcessExitedException) as caught:
        mp.spawn(_exits, args=(3,), nprocs=2)
    assert caught.value.exit_code == 3


def test_signal_is_expected() -> None:
    with pytest.raises(mp.ProcessExitedException) as caught:
        mp.spawn(_is_killed, nprocs=2)
    assert caught.value.signal_name == "SIGKILL"


def test_leaves() -> None:
    mp.spawn(_leaves, nprocs=2)


def test_without_join() -> None:
    queue = mp.get_context("spawn").SimpleQueue()
    context = mp.spawn(_puts, (queue,), nprocs=2, join=False)
    assert sorted([queue.get(), queue.get()]) == [0, 1]
    while not context.join(timeout=5):
        pass
    assert [process.exitcode for process in context.processes] == [0, 0]


def test_processes() -> None:
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_puts, args=(rank, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    assert sorted([queue.get(), queue.get()]) == [0, 1]
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_threads_and_handlers(tmp_path: Path) -> None:
    mp.spawn(_ends_late, (tmp_path,), nprocs=2)
    expected = {f"{what}-{rank}" for what in ("thread", "finaliser", "handler") for rank in (0, 1)}
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_garbage_stays_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sys.addaudithook(_collect_in_forks)
    gc.disable()
    try:
        Garbage()
        monkeypatch.setattr(sys.modules[__name__], "_collects_in_forks_of", [os.getpid()])
        mp.spawn(_leaves, nprocs=2)
        process = mp.get_context("spawn").Process(target=_leaves, args=(0,))
        process.start()
        process.join()
        assert process.exitcode == 0
    finally:
        gc.enable()


def test_process_is_as_a_fresh_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Registry, "changed", True)
    context = mp.get_context("spawn")
    queue, values = context.Queue(), torch.zeros(2)
    process = context.Process(target=_tells_state, args=(queue, tmp_path, values))
    process.start()
    assert queue.get() == (False, "SpawnProcess")
    process.join()
    assert process.exitcode == 0
    # The tensor is in shared memory.
    assert values.tolist() == [1.0, 1.0]
    assert {path.name for path in tmp_path.iterdir()} == {"thread-0", "finaliser-0", "handler-0"}


def test_process_has_arguments_by_pickle() -> None:
    process = mp.get_context("spawn").Process(target=lambda: None)
    with pytest.raises(Exception, match="pickle"):
        process.start()


def test_timeout_is_expected() -> None:
    items = mp.get_context("spawn").Queue()
    process = mp.get_context("spawn").Process(target=_dies, args=(items,))
    process.start()
    with pytest.raises(queue.Empty):
        items.get(timeout=50)
    assert process.exitcode == -9


@pytest.mark.parametrize("by_thread", [True, False])
def test_late_item(by_thread: bool) -> None:
    items = mp.get_context("spawn").Queue()
    process = mp.get_context("spawn").Process(target=_leaves if by_thread else _leaves_it_to_another, args=(items,))
    process.start()
    if by_thread:
        threading.Thread(target=_puts_late, args=(items,)).start()
    assert items.get() == "late"
    assert process.exitcode == 0


def _adds(rank: int, given: Any, sums: Any) -> None:
    while (number := given.get()) is not None:
        sums.put(number + 1)


@pytest.fixture(scope="module")
def adder() -> Iterator[tuple[Any, Any]]:
    context = mp.get_context("spawn")
    given, sums = context.Queue(), context.Queue()
    ranks = mp.spawn(_adds, (given, sums), nprocs=1, join=False)
    yield given, sums
    given.put(None)
    assert ranks.join()


@pytest.mark.parametrize("number", [1, 2])
def test_fixture_has_ranks(adder: tuple[Any, Any], number: int) -> None:
    adder[0].put(number)
    assert adder[1].get(timeout=50) == number + 1


def _warns(rank: int) -> None:
    warnings.warn(f"warned by {rank}", stacklevel=1)


@pytest.mark.filterwarnings("error")
def test_warns() -> None:
    mp.spawn(_warns, nprocs=1)
    process = mp.get_context("spawn").Process(target=_warns, args=(7,))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_ends_ranks_itself() -> None:
    ranks = mp.spawn(_waits, nprocs=2, join=False)
    for process in ranks.processes:
        process.terminate()
        process.join()


def test_teardown_ends_it(request: pytest.FixtureRequest) -> None:
    process = mp.get_context("spawn").Process(target=signal.pause)
    process.start()
    request.addfinalizer(process.terminate)


def test_fails() -> None:
    mp.spawn(_raises, args=(2, _free_port()), nprocs=2)


def test_dies() -> None:
    mp.spawn(_is_killed, nprocs=2)


@pytest.fixture(scope="class")
def start_waiting() -> Iterator[Any]:
    started = []

    def start() -> Any:
        started.append(mp.get_context("spawn").Process(target=signal.pause))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.terminate()


class TestFactory:
    @pytest.mark.parametrize("number", [1, 2])
    def test_factory_ends_it(self, start_waiting: Any, number: int) -> None:
        assert start_waiting().is_alive()


class MethodTest(unittest.TestCase):
    def test_method(self) -> None:
        sums = torch.zeros(2)
        mp.spawn(_all_reduce, args=(2, _free_port(), sums), nprocs=2)
        self.assertEqual(sums.tolist(), [3.0, 3.0])


# From here on: holes of the own harness, under which all of them pass, one skips, and the last one never ends.


def test_hole_exit_0() -> None:
    mp.spawn(_exits, args=(0,), nprocs=2)


def test_hole_no_join() -> None:
    mp.spawn(_raises, args=(2, _free_port()), nprocs=2, join=False)


def test_hole_exit_codes_unread() -> None:
    processes = [mp.Process(target=_exits, args=(rank, 3)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def test_hole_process_left() -> None:
    assert _run_ranks("leave") == [0, 0]


def test_hole_after_the_end(request: pytest.FixtureRequest) -> None:
    reader, writer = mp.Pipe(duplex=False)
    mp.get_context("spawn").Process(target=_exits_late, args=(reader,)).start()
    request.addfinalizer(lambda: writer.send(3))


class HoleTest(unittest.TestCase):
    def test_hole_exit_0_of_process(self) -> None:
        assert _run_ranks("exit") == [0, 0]
        self.skipTest("as MMEngine's harness ends")

    def test_hole_in_method(self) -> None:
        process = mp.get_context("spawn").Process(target=_exits, args=(1, 3))
        process.start()
        process.join()


def test_never_ends() -> None:
    items = mp.get_context("spawn").Queue()
    mp.get_context("spawn").Process(target=_dies, args=(items,)).start()
    items.get()
