"""Lists the kinds of events, and makes an event from its wire form."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, get_type_hints

from dist_testing.codec import WrongValueError, shape_of
from dist_testing.events.cases import CASE_KINDS
from dist_testing.events.event import Event
from dist_testing.events.runs import (
    ForkServerMemory,
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
            value if type(value := wire[field]) is plain else read(value) for field, read, plain in fields
        ]
        return kind(*given)
    except (KeyError, WrongValueError):
        pass
    values = {}
    for field, read, _ in fields:
        if field in wire:
            try:
                values[field] = read(wire[field])
            except WrongValueError as error:
                raise ValueError(f"{name}: {field} = {error}") from None
        elif are_needed[field]:
            raise ValueError(f"{name}: {field} is missing")
    return kind(**values)


_CLASSES = {kind.kind: kind for kind in KINDS}
_Fields = list[tuple[str, Callable[[Any], Any], type | None]]


# Made when it is needed: most processes read no event.
@functools.cache
def _known(name: str) -> tuple[type[Event], _Fields, dict[str, bool]]:
    """Return the class of a kind; name, reader and plain class of each field; and whether a field has no default."""
    kind = _CLASSES[name]
    hints = get_type_hints(kind)
    shapes = {item.name: shape_of(hints[item.name]) for item in dataclasses.fields(kind)}
    are_needed = {item.name: item.default is dataclasses.MISSING for item in dataclasses.fields(kind)}
    return kind, [(field, shape.read, shape.plain) for field, shape in shapes.items()], are_needed
