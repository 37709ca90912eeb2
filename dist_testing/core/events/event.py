"""The base class of all events."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

# Decimal places of times in an event: microseconds.
DIGITS = 6
# A text names at most so many links.
_MAX_LINKS = 20


class Phase(NamedTuple):
    """One phase of a rank.

    Attributes:
        name: Such as "init", "setup", "call", "teardown", "destroy".
        begin_s: Its begin on the monotonic clock, in seconds.
        end_s: Begin of the next phase, or end of the rank's work in the case.
    """

    name: str
    begin_s: float
    end_s: float


class LedgerCall(NamedTuple):
    """One collective call of a rank, as torch's flight recorder knows it.

    Attributes:
        group: torch's name of the group, such as "0" for the default group.
        number: Number of the call among those of its group, from 1.
        backend: torch's backend that runs it, such as "gloo".
        operation: Such as "all_reduce".
        inputs: Shapes and types of its inputs, such as "[[3]] Float".
        is_done: Whether it has ended.
    """

    group: str
    number: int
    backend: str
    operation: str
    inputs: str
    is_done: bool


class CallTimes(NamedTuple):
    """When a collective call began and ended, on the monotonic clock, in seconds.

    Attributes:
        begin_s: When it began; None if torch does not say.
        end_s: When torch saw its end; None if it has not ended, or if torch does not say.
    """

    begin_s: float | None
    end_s: float | None


class LinkEnds(NamedTuple):
    """A link between simulated nodes: from which node, to which node."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Event:
    """One fact of a run.

    Attributes:
        at_s: When the runner learned it, on the monotonic clock, in seconds.
    """

    kind: ClassVar[str] = ""

    at_s: float

    def to_wire(self) -> dict[str, Any]:
        """Return the event as JSON values, with its kind under "event". Rounds times to microseconds."""
        wire: dict[str, Any] = {"event": self.kind}
        for name in _field_names(type(self)):
            value = getattr(self, name)
            wire[name] = round(value, DIGITS) if type(value) is float else value
        return wire


# Cached, because dataclasses.fields takes longer than the rest of `to_wire`.
_names: dict[type[Event], tuple[str, ...]] = {}


def _field_names(kind: type[Event]) -> tuple[str, ...]:
    if kind not in _names:
        _names[kind] = tuple(item.name for item in dataclasses.fields(kind))
    return _names[kind]


def fault_in_words(action: str, ranks: Sequence[int], links: Iterable[tuple[int, int]], rule: str) -> str:
    """Return a fault in words: of ranks, or the new rule of links."""
    if ranks:
        return f"{action} of rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    named = [f"{source}->{target}" for source, target in links]
    shown = [*named[:_MAX_LINKS], "..."] if len(named) > _MAX_LINKS else named
    return f"links between nodes {', '.join(shown)}: {rule}"
