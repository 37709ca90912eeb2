"""Starts many processes that lease GPUs at once, hold them for a moment, and sometimes die.

    python -m tests.support.gpu_crowd PROCESSES SEED LOG

Every process writes its events as lines to a common file, stamped with the monotonic clock, which is the same for all
processes of a machine. A process that dies with a lease writes a line just before.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import dist_testing.gpus.lease as leasing
from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.lease import Place

# Share of the processes that are killed at a random moment.
_KILLED_SHARE = 0.15
# Share of the processes that are killed while they hold GPUs.
_DIES_HOLDING_SHARE = 0.15
# Share of the processes that may use only some of the GPUs, in any order, as with CUDA_VISIBLE_DEVICES.
_SUBSET_SHARE = 0.5
# Long enough that other processes wait, short enough for hundreds of turns. Seconds.
_LONGEST_HOLD_S = 0.005
_LATEST_KILL_S = 0.5


def main(count: int, seed: int, log: Path) -> None:
    """Start all processes and wait until they have ended."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            _take_part(number, random.Random(seed + number), fd)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


def _take_part(number: int, chance: random.Random, log: int) -> NoReturn:
    def say(event: str, *values: int) -> None:
        os.write(log, f"{event} {number} {time.monotonic_ns()} {' '.join(map(str, values))}\n".encode())

    class LoggedPlace(Place):
        @classmethod
        def take(cls, file: Path) -> Place:
            place = super().take(file)
            say("queued")
            return place

        def leave(self) -> None:
            # Still head: these lines are in the order in which processes were served.
            say("served")
            super().leave()

    code = 1
    try:
        leasing.Place = LoggedPlace  # type: ignore[misc]  # to see when a place is taken
        if chance.random() < _KILLED_SHARE:
            # No handler is set, so the signal kills.
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, chance.random() * _LATEST_KILL_S))
        pool = gpus_present()
        if chance.random() < _SUBSET_SHARE:
            pool = tuple(chance.sample(pool, chance.randint(1, len(pool))))
        wanted = chance.randint(1, len(pool))
        say("asked", wanted, *(gpu.index for gpu in pool))
        lease = leasing.lease_gpus(wanted, pool, limit_s=600)
        say("got", *(gpu.index for gpu in lease.gpus))
        time.sleep(chance.random() * _LONGEST_HOLD_S)
        say("releases")
        if chance.random() < _DIES_HOLDING_SHARE:
            os.kill(os.getpid(), signal.SIGKILL)
        lease.release()
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
