"""Lists the kinds of events, and makes an event from its wire form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import get_type_hints

from dist_testing.codec import Shape, WrongValueError, shape_of
from dist_testing.events.cases import CASE_KINDS
from dist_testing.events.event import Event
from dist_testing.events.runs import (
    RunEnded,
    RunStarted,
    StreamCut,
    TestBegan,
    TestEnded,
    TestReported,
    TestsCollected,
)

# Increase it when a kind or a field disappears or changes its meaning. A new kind or field needs no increase, because
# readers ignore unknown ones.
SCHEMA = 1

KINDS: tuple[type[Event], ...] = (
    RunStarted,
    TestsCollected,
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
    if not isinstance(wire, Mapping) or not isinstance(wire.get("event"), str):
        raise ValueError('expected an object with the name of an event under "event"')
    known = _FIELDS.get(wire["event"])
    if known is None:
        return None
    kind, fields, readers = known
    try:
        # Most events have all fields, and values that fit.
        return kind(*[read(wire[name]) for name, read in readers])
    except (KeyError, WrongValueError):
        pass
    values = {}
    for name, shape, is_needed in fields:
        if name in wire:
            try:
                values[name] = shape.read(wire[name])
            except WrongValueError as error:
                raise ValueError(f"{kind.kind}: {name} = {error}") from None
        elif is_needed:
            raise ValueError(f"{kind.kind}: {name} is missing")
    return kind(**values)


def _fields(kind: type[Event]) -> list[tuple[str, Shape, bool]]:
    hints = get_type_hints(kind)
    return [
        (item.name, shape_of(hints[item.name]), item.default is dataclasses.MISSING)
        for item in dataclasses.fields(kind)
    ]


# Name of a kind to its class; for each field: name, shape, and whether it has no default; and name and reader of each.
_FIELDS = {
    kind.kind: (kind, fields, [(name, shape.read) for name, shape, _ in fields])
    for kind in KINDS
    for fields in [_fields(kind)]
}
