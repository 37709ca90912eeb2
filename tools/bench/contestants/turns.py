"""The contestant's part of a bench: which cases to run, and when.

The bench starts all contestants, and then lets one of them at a time run one case, so that the machine's noise is the
same for all. A contestant sends its messages through a pipe, one JSON object per line, with times of the monotonic
clock, which is the same for all processes of a machine.
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

# A case of this name also measures the memory of the contestant and its ranks, and writes it into the file.
MEMORY_CASE = "memory"
MEMORY_FILE = "pss-bytes"
# Cases with this prefix do nothing on their ranks, to measure the contestant's own cost.
EMPTY_CASE = "nothing-"

# These variables carry the order to the contestant and to its ranks, for every way to start ranks.
_WORLD_SIZE = "DIST_BENCH_WORLD_SIZE"
_CASES = "DIST_BENCH_CASES"
_FOLDER = "DIST_BENCH_FOLDER"
_PIPES = "DIST_BENCH_PIPES"
# The contestant sets this itself, so that its ranks can tell that they are ranks.
_CONTESTANT = "DIST_BENCH_CONTESTANT"


@dataclass(frozen=True, slots=True)
class Order:
    """The order for a contestant."""

    world_size: int  # ranks of every case
    cases: tuple[str, ...]  # Names, in the order in which to run them; the case's body reads them, too
    folder: Path  # the folder for the measurements of the ranks

    def to_env(self, listen_fd: int, tell_fd: int) -> dict[str, str]:
        """Return the environment variables of the order, with the descriptors to read turns from and to write to."""
        return {
            _WORLD_SIZE: str(self.world_size),
            _CASES: ",".join(self.cases),
            _FOLDER: str(self.folder),
            _PIPES: f"{listen_fd},{tell_fd}",
        }


@functools.cache
def order() -> Order:
    """Return this process's order, in a contestant and in its ranks.

    Raises:
        KeyError: If no bench has started this process.
    """
    return Order(int(os.environ[_WORLD_SIZE]), tuple(os.environ[_CASES].split(",")), Path(os.environ[_FOLDER]))


class Turns:
    """The contestant's end of the two pipes.

    Attributes:
        contestant_pid: The contestant's process, also on its ranks.
    """

    def __init__(self) -> None:
        self.contestant_pid = int(os.environ.setdefault(_CONTESTANT, str(os.getpid())))
        listen, tell = os.environ[_PIPES].split(",")
        self._listen_fd = int(listen)
        self._tell_fd = int(tell)

    @property
    def are_mine(self) -> bool:
        """Whether this process is the contestant, and not one of its ranks."""
        return os.getpid() == self.contestant_pid

    def tell(self, event: str, **fields: object) -> None:
        """Report that something has just happened."""
        line = json.dumps({"event": event, "at_s": time.monotonic(), **fields}) + "\n"
        os.write(self._tell_fd, line.encode())

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Wait for the turn of a case, and run the case in the block."""
        self.tell("waiting", case=name)
        if not os.read(self._listen_fd, 1):
            raise SystemExit("the bench has ended before its contestant")
        self.tell("started", case=name)
        yield
        self.tell("ended", case=name)


@functools.cache
def turns() -> Turns:
    """Return this process's turns. The first process that calls this is the contestant."""
    return Turns()
