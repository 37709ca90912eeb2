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
    """One call of `torch.distributed` under fixed conditions.

    Attributes:
        row: Number of its row in the contract, such as "6.1".
        operation: What is called, such as "all_reduce".
        world_size: Number of ranks.
        op: Reduce operation, such as "sum"; "" if the operation does not reduce.
        dtype: Such as "float32"; "" for no tensor, or where a script chooses it.
        layout: Layout of the tensors, such as "strided"; see `layouts`.
        size: Name of the shape of one part, such as "odd"; see `layouts`.
        root: Name of the root: "first", "middle" or "last" of the group, by global rank; with "_in_group" by its
            rank in the group.
        group: Name of the group; see `groups`.
        mode: "sync" or "async".
        variant: What a script does, such as "twice"; "" for cells of the table.
        contract: The status that the contract asks for: works, or refuses where no value is defined.
        fresh: Whether it needs ranks of its own, without a default group.
        functional: Whether it uses functional collectives, whose modules take a second to import.
    """

    row: str
    operation: str
    world_size: int
    op: str = ""
    dtype: str = ""
    layout: str = ""
    size: str = ""
    root: str = ""
    group: str = ""
    mode: str = ""
    variant: str = ""
    contract: Status = Status.WORKS
    fresh: bool = False
    functional: bool = False

    @property
    def name(self) -> str:
        """The cell's stable name, such as "all_reduce/sum/float32/strided/odd/none/sync/w3"."""
        tensors = (self.op, self.dtype, self.layout, self.size, self.root, self.group, self.mode)
        parts = (self.operation, self.variant, *tensors, f"w{self.world_size}")
        return "/".join(part for part in parts if part)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns covers the whole name of a cell; "*" stands for any text."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Observation:
    """What one rank observed.

    Attributes:
        rank: The rank.
        seen: Right, wrong, or an error.
        text: What is wrong, or the error's class and first line.
        seconds: How long the call took.
        lives: Whether a good call on the same group worked afterwards. True after a right result, which needs none.
    """

    rank: int
    seen: Seen
    text: str = ""
    seconds: float = 0.0
    lives: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """How a cell ended.

    Attributes:
        cell: The cell.
        status: The status.
        detail: Why, in text without times or addresses; "" for works.
        seconds: Duration of the run that counts.
        lives: Whether the group lived on after an error; None if that was not asked or not answered.
    """

    cell: Cell
    status: Status
    detail: str = ""
    seconds: float = 0.0
    lives: bool | None = None
