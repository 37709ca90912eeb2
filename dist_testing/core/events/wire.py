"""Lists the kinds of events, and makes an event from its wire form."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, get_type_hints

from dist_testing.core.events.cases import CASE_KINDS
from dist_testing.core.events.event import Event
from dist_testing.core.events.runs import (
    ForkServerMemory,
    RunEnded,
    RunStarted,
    StreamCut,
    TestBegan,
    TestEnded,
    TestReported,
    TestsCollected,
)
from dist_testing.core.ground.codec import Shape, WrongValueError, shape_of

# Increase it when a kind or a field disappears or changes its meaning. A new kind or field needs no increase, because
# readers ignore unknown ones.
SCHEMA = 1

KINDS: tuple[type[Event], ...] = (
    RunStarted,
    TestsCollected,
    ForkServerMemory,
    TestBegan,
    TestReported,
    TestEnded,
    *CASE_KINDS,
    RunEnded,
    StreamCut,
)


def event_of(wire: object) -> Event | None:
    """Make an event from its wire form.

    Args:
        wire: Result of `Event.to_wire` after a round trip through JSON.

    Returns:
        The event, without unknown fields; None if its kind is unknown.

    Raises:
        ValueError: If `wire` has no kind, lacks a field, or has a field of a wrong type.
    """
    # Not `isinstance` of an abstract class, which takes longer than all the rest of a small event.
    name = wire.get("event") if type(wire) is dict else None
    if type(wire) is not dict or not isinstance(name, str):
        raise ValueError('expected an object with the name of an event under "event"')
    if name not in _CLASSES:
        return None
    kind, fields, are_needed = _known(name)
    try:
        # Most events have all fields, and values that fit.
        given: list[Any] = [
            value if type(value := wire[field]) is shape.plain else shape.read(value) for field, shape in fields
        ]
        return kind(*given)
    except (KeyError, WrongValueError):
        pass
    values = {}
    for field, shape in fields:
        if field in wire:
            try:
                values[field] = shape.read(wire[field])
            except WrongValueError as error:
                raise ValueError(f"{name}: {field} = {error}") from None
        elif are_needed[field]:
            raise ValueError(f"{name}: {field} is missing")
    return kind(**values)


# Stands for an event that `events_of` does not make.
NOT_MADE = object()


def events_of(wires: Sequence[dict[str, Any]]) -> list[Any]:
    """Make many events at once, each kind together: that takes a third of the time of `event_of`.

    Args:
        wires: The wire forms.

    Returns:
        For each an event, or None for an unknown kind, or NOT_MADE if `event_of` has to look at it: one of its kind
        lacks a field, or has a wrong value.
    """
    made: list[Any] = [NOT_MADE] * len(wires)
    by_kind: dict[str, list[int]] = defaultdict(list)
    for place, wire in enumerate(wires):
        name = wire.get("event")
        if type(name) is str:
            by_kind[name].append(place)
    for name, places in by_kind.items():
        if name not in _CLASSES:
            events: Iterable[Event | None] = itertools.repeat(None)
        else:
            kind, fields, _ = _known(name)
            try:
                columns = [_column([wires[place][field] for place in places], shape) for field, shape in fields]
            except (KeyError, WrongValueError):
                continue
            events = map(kind, *columns)
        for place, event in zip(places, events):  # noqa: B905 - one iterable is endless
            made[place] = event
    return made


def _column(values: Sequence[Any], shape: Shape) -> Sequence[Any]:
    """Return the Python values of one field of many events."""
    if shape.read_many is not None and (found := shape.read_many(values)) is not None:
        return found
    return [shape.read(value) for value in values]


_CLASSES = {kind.kind: kind for kind in KINDS}
_Fields = list[tuple[str, Shape]]


# Made when it is needed: most processes read no event.
@functools.cache
def _known(name: str) -> tuple[type[Event], _Fields, dict[str, bool]]:
    """Return the class of a kind; name and shape of each field; and whether a field has no default."""
    kind = _CLASSES[name]
    hints = get_type_hints(kind)
    shapes = {item.name: shape_of(hints[item.name]) for item in dataclasses.fields(kind)}
    are_needed = {item.name: item.default is dataclasses.MISSING for item in dataclasses.fields(kind)}
    return kind, list(shapes.items()), are_needed
