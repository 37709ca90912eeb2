"""What a rank tells of its collective calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dist_testing.core.ground.codec import Family


@dataclass(frozen=True, slots=True)
class GroupCalls:
    """The collective calls of a rank on one group, in one case.

    Attributes:
        group: torch's name of the group.
        ranks: Its members, as ranks of the world.
        count: How many calls the rank has made.
        first: Number of the first of `calls`, from 1.
        calls: Each as backend and operation, types and shapes of its inputs, such as "gloo:all_reduce Float [[3]]";
            empty if they are not known.
    """

    group: str
    ranks: tuple[Annotated[int, range(1 << 20)], ...]
    count: Annotated[int, range(1 << 62)]
    first: Annotated[int, range(1 << 62)]
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallsMade:
    """The collective calls of a rank in a case that it has passed. The rank sends it before its report.

    Attributes:
        groups: Of the groups that exist at the end of the case.
        is_complete: Whether the calls are told, and not only counted, and none is missing.
    """

    groups: tuple[GroupCalls, ...]
    is_complete: bool


CALLS: Family[CallsMade] = Family("calls of a rank", 1, (CallsMade,))
