"""Defines a cell, its statuses, and what a rank observes in it."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

# Name of the group of all ranks, as `group=None`.
WHOLE = "none"


class Status(enum.StrEnum):
    """How a cell ends."""

    WORKS = "works"
    REFUSES = "refuses"
    WRONG = "wrong"
    HANGS = "hangs"
    CRASHES = "crashes"
    NOT_RUN = "not run"


class Seen(enum.StrEnum):
    """What one rank observes in a cell."""

    RIGHT = "right"
    ERROR = "error"
    WRONG = "wrong"
    ABSENT = "absent"  # this torch has no such function


@dataclass(frozen=True, slots=True)
class Cell:
    """One call of `torch.distributed` under fixed conditions. A text is "" where it does not apply."""

    row: str  # number of its row in the contract, such as "6.1"
    operation: str  # what is called, such as "all_reduce"
    world_size: int
    op: str = ""  # reduce operation, such as "sum"
    dtype: str = ""  # such as "float32"; "" also where a script chooses it
    # Names of values in `axes`.
    layout: str = ""
    size: str = ""  # of one part
    root: str = ""
    group: str = ""
    mode: str = ""  # "sync" or "async"
    variant: str = ""  # what a script does, such as "twice"
    contract: Status = Status.WORKS  # what the contract asks for: works, or refuses where no value is defined
    fresh: bool = False  # whether it needs ranks of its own, without a default group

    @property
    def name(self) -> str:
        """The cell's stable name, such as "all_reduce/sum/float32/strided/odd/none/sync/w3"."""
        tensors = (self.op, self.dtype, self.layout, self.size, self.root, self.group, self.mode)
        parts = (self.operation, self.variant, *tensors, f"w{self.world_size}")
        return "/".join(part for part in parts if part)

    @property
    def is_functional(self) -> bool:
        """Whether it uses functional collectives, whose modules take a second to load."""
        return self.operation in ("functional", "nn.functional")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns covers the whole name of a cell; "*" stands for any text."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Observation:
    """What one rank observed."""

    rank: int
    seen: Seen
    text: str = ""  # what is wrong, or the error's class and first line
    seconds: float = 0.0  # how long the call took
    lives: bool = True  # whether a good call on the same group worked afterwards; a right result needs none


@dataclass(frozen=True, slots=True)
class Result:
    """How a cell ended."""

    cell: Cell
    status: Status
    detail: str = ""  # why, in text without times or addresses; "" for works
    seconds: float = 0.0  # of the run that counts
    lives: bool | None = None  # whether the group lived on after an error; None if that was not asked or not answered
