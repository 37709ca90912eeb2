"""A contestant's side of a bench: what to run, and when it is its turn.

The bench starts all contestants, and lets one of them at a time run one case, so that the machine's noise falls on all
of them alike. What a contestant says goes through a pipe, one JSON object per line, stamped with the monotonic clock,
which is the same for all processes of a machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["EMPTY_CASE", "MEMORY_CASE", "MEMORY_FILE", "Order", "Turns", "order", "turns"]

# A case of this name also measures what the contestant and all its ranks take, and leaves it in that file.
MEMORY_CASE = "memory"
MEMORY_FILE = "pss-bytes"
# Cases whose names begin so do nothing on their ranks: what is left is what the contestant itself takes.
EMPTY_CASE = "nothing-"

# The order travels in these to the contestant, and on to its ranks, however those are started.
_WORLD_SIZE = "DIST_BENCH_WORLD_SIZE"
_CASES = "DIST_BENCH_CASES"
_FOLDER = "DIST_BENCH_FOLDER"
_PIPES = "DIST_BENCH_PIPES"
# Set by the contestant itself, so that its ranks can tell that they are not it.
_CONTESTANT = "DIST_BENCH_CONTESTANT"


@dataclass(frozen=True, slots=True)
class Order:
    """What a contestant is to run.

    Attributes:
        world_size: Ranks of every case.
        cases: Names, in the order in which to run them; each also means something to the case's body.
        folder: Where the ranks leave what they measured.
    """

    world_size: int
    cases: tuple[str, ...]
    folder: Path

    def to_env(self, listen_fd: int, tell_fd: int) -> dict[str, str]:
        """The order as it travels.

        Args:
            listen_fd: Where the contestant hears that it is its turn.
            tell_fd: Where it says what happened.
        """
        return {
            _WORLD_SIZE: str(self.world_size),
            _CASES: ",".join(self.cases),
            _FOLDER: str(self.folder),
            _PIPES: f"{listen_fd},{tell_fd}",
        }


@functools.cache
def order() -> Order:
    """This process's order, in a contestant and in its ranks.

    Raises:
        KeyError: If no bench has started this process.
    """
    return Order(int(os.environ[_WORLD_SIZE]), tuple(os.environ[_CASES].split(",")), Path(os.environ[_FOLDER]))


class Turns:
    """The contestant's end of the two pipes.

    Attributes:
        contestant_pid: The contestant's process, also when asked on one of its ranks.
    """

    def __init__(self) -> None:
        self.contestant_pid = int(os.environ.setdefault(_CONTESTANT, str(os.getpid())))
        listen, tell = os.environ[_PIPES].split(",")
        self._listen_fd = int(listen)
        self._tell_fd = int(tell)

    @property
    def are_mine(self) -> bool:
        """Whether this process is the contestant, and not a rank of its."""
        return os.getpid() == self.contestant_pid

    def tell(self, event: str, **fields: object) -> None:
        """Say that something happened just now."""
        line = json.dumps({"event": event, "at_s": time.monotonic(), **fields}) + "\n"
        os.write(self._tell_fd, line.encode())

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Wait for the turn to run a case, and run it in the block."""
        self.tell("waiting", case=name)
        if not os.read(self._listen_fd, 1):
            raise SystemExit("the bench has ended before its contestant")
        self.tell("started", case=name)
        yield
        self.tell("ended", case=name)


@functools.cache
def turns() -> Turns:
    """This process's turns. The first process to ask is the contestant."""
    return Turns()
