"""The cases that `detect.py` times: one rank dies, and the others are in a call that never returns."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from contestants.turns import order

# Time between the last message of the peers and the death, so that the peers have reached the end of the call in which
# they wait, as in a test that has run for a while. Nothing depends on its length. Seconds.
_SETTLE_S = 0.3


@dataclass(frozen=True, slots=True)
class Scenario:
    """The scenario that a case's name describes: `<kind>-<rank>-<peers>-<round>`."""

    kind: str  # kind of death; see `_DEATHS`
    rank: int  # the rank that dies
    peers: str  # what the other ranks do: "collective" or "asleep"

    @classmethod
    def named(cls, case: str) -> Scenario:
        """Read a case's name."""
        kind, rank, peers, _ = case.split("-")
        return cls(kind, int(rank), peers)


def _raise() -> None:
    raise ValueError("this rank fails")


# A bad read causes the signal, as in real code, and not `kill`.
_DEATHS: dict[str, Callable[[], object]] = {
    "raise": _raise,
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "_exit(0)": lambda: os._exit(0),
    "_exit(3)": lambda: os._exit(3),
    "_exit(77)": lambda: os._exit(77),
    "sys.exit(3)": lambda: sys.exit(3),
}


def run_death(case: str, rank: int) -> None:
    """Run a case on a rank, in the default group. The rank that dies writes the time of its death into the folder."""
    scenario = Scenario.named(case)
    value = torch.ones(4)
    dist.all_reduce(value)
    if rank == scenario.rank:
        # Otherwise writing a core dump would be timed, too, and the file would stay.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        die = _DEATHS[scenario.kind]
        time.sleep(_SETTLE_S)
        with order().folder.joinpath(case).open("w", encoding="utf-8") as file:
            file.write(repr(time.monotonic()))
            file.flush()
            die()
    if scenario.peers == "collective":
        dist.all_reduce(value)
    else:
        while True:
            time.sleep(3600.0)
