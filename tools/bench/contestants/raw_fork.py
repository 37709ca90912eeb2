"""The least that a case on real processes costs: fork a process that has torch, make a group, use it, destroy it.

    python -m contestants.raw_fork tcp|file

No output is kept, nothing is watched, no error is told apart from another: a floor, and no way to run tests.
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
                # The store closes what it is given.
                master_listen_fd=os.dup(listener.fileno()) if rank == 0 else None,
            )

        _run_world(case, store)


def _run_on_file(case: str) -> None:
    with tempfile.NamedTemporaryFile() as file:
        _run_world(case, lambda _: FileStore(file.name, order().world_size))
        # The last user of a FileStore removes its file.
        open(file.name, "a").close()


def main() -> None:
    """Run the cases of the order."""
    run = {"tcp": _run_on_tcp, "file": _run_on_file}[sys.argv[1]]
    # As whoever cares for the cost of a fork does: pages stay shared when a child collects.
    gc.collect()
    gc.freeze()
    turns().tell("imported")
    for case in order().cases:
        with turns().case(case):
            run(case)


if __name__ == "__main__":
    main()
