"""Hangs that come from outside of torch: a thread, a lock, a child process. No ledger shows that they never end."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

from dist_testing import World

# Much longer than any limit of a case. Seconds.
_FOREVER_S = 1e6


def calls_in_a_thread(world: World) -> None:
    """Leave the call to a thread that waits for something else."""
    if world.rank == 1:
        never = threading.Event()

        def call() -> None:
            never.wait()
            dist.all_reduce(torch.ones(3))

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join()
    else:
        dist.all_reduce(torch.ones(3))


def sleeps(world: World) -> None:
    """Sleep on one rank."""
    if world.rank == 1:
        time.sleep(_FOREVER_S)
    dist.barrier()


def loops(world: World) -> None:
    """Loop on one rank."""
    while world.rank == 1:
        torch.ones(3).sum()
    dist.barrier()


def waits_for_a_lock(world: World) -> None:
    """Take the lock of a file on rank 0, which keeps it while it waits for rank 1."""
    path = str(world.tmp_path / "lock")
    with open(path, "w") as file:
        if world.rank == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()
        if world.rank == 1:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()


def waits_for_a_child(world: World) -> None:
    """Wait for a process that never ends."""
    if world.rank == 1:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(1e6)"], check=True)
    dist.barrier()


def is_stopped(world: World) -> None:
    """Stop the process of one rank."""
    if world.rank == 1:
        signal.raise_signal(signal.SIGSTOP)
    dist.barrier()
