"""The least cost of a case on real processes: fork a process that has torch, make a group, use it, destroy it.

    python -m contestants.raw_fork tcp|file|pool

`pool` forks the ranks and makes their group once, and wakes them with one byte for each case: the least cost of one
more case on a worker pool.

It keeps no output, watches nothing, and does not distinguish errors: a lower limit, and no way to run tests.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import NoReturn

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from contestants.trivial import run_trivial
from contestants.turns import order, turns

LOOPBACK = "127.0.0.1"


def _run_rank(case: str, rank: int, store: Callable[[int], Store]) -> NoReturn:
    code = 1
    try:
        dist.init_process_group("gloo", store=store(rank), rank=rank, world_size=order().world_size)
        run_trivial(case, rank)
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run_world(case: str, store: Callable[[int], Store]) -> None:
    pids = []
    for rank in range(order().world_size):
        pid = os.fork()
        if pid == 0:
            _run_rank(case, rank, store)
        pids.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(statuses):
        raise RuntimeError(f"wait statuses of the ranks: {statuses}")


def _run_on_tcp(case: str) -> None:
    size = order().world_size
    with socket.create_server((LOOPBACK, 0), backlog=2 * size) as listener:
        port = listener.getsockname()[1]

        def store(rank: int) -> Store:
            return TCPStore(
                LOOPBACK,
                port,
                size,
                is_master=rank == 0,
                wait_for_workers=False,
                # The store closes the descriptor.
                master_listen_fd=os.dup(listener.fileno()) if rank == 0 else None,
            )

        _run_world(case, store)


def _run_on_file(case: str) -> None:
    with tempfile.NamedTemporaryFile() as file:
        _run_world(case, lambda _: FileStore(file.name, order().world_size))
        # The last user of a FileStore removes its file.
        open(file.name, "a").close()


class _WorkerPool:
    """Ranks and their group for all cases."""

    def __init__(self) -> None:
        self._channels: list[socket.socket] = []
        self._file = tempfile.NamedTemporaryFile()  # noqa: SIM115  # open as long as the process
        for rank in range(order().world_size):
            mine, other = socket.socketpair()
            if os.fork() == 0:
                # Otherwise the ranks keep each other's connection open, and live on if the bench is killed.
                for inherited in (*self._channels, mine):
                    inherited.close()
                self._serve(rank, other)
            other.close()
            self._channels.append(mine)

    def run(self, case: str) -> None:
        """Run one case on every rank."""
        number = order().cases.index(case).to_bytes(4, "big")
        for channel in self._channels:
            channel.sendall(number)
        if not all(channel.recv(1) for channel in self._channels):
            raise RuntimeError("a rank of the pool has ended")

    def _serve(self, rank: int, channel: socket.socket) -> NoReturn:
        try:
            store = FileStore(self._file.name, order().world_size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=order().world_size)
            while number := channel.recv(4):
                run_trivial(order().cases[int.from_bytes(number, "big")], rank)
                channel.sendall(b"1")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


def main() -> None:
    """Run the cases of the order."""
    # Programs that need cheap forks do this: pages stay shared when a child collects garbage.
    gc.collect()
    gc.freeze()
    turns().tell("imported")
    way = sys.argv[1]
    run = _WorkerPool().run if way == "pool" else {"tcp": _run_on_tcp, "file": _run_on_file}[way]
    for case in order().cases:
        with turns().case(case):
            run(case)


if __name__ == "__main__":
    main()
