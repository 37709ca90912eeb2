"""Lists the kinds of events, and makes an event from its wire form."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from dist_testing.codec import WrongValueError, shape_of
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
    if wire["event"] not in _CLASSES:
        return None
    kind, fields = _known(wire["event"])
    try:
        # Most events have all fields, and values that fit.
        return kind(*[read(wire[name]) for name, read, _ in fields])
    except (KeyError, WrongValueError):
        pass
    values = {}
    for name, read, is_needed in fields:
        if name in wire:
            try:
                values[name] = read(wire[name])
            except WrongValueError as error:
                raise ValueError(f"{kind.kind}: {name} = {error}") from None
        elif is_needed:
            raise ValueError(f"{kind.kind}: {name} is missing")
    return kind(**values)


_CLASSES = {kind.kind: kind for kind in KINDS}


# Made when it is needed: most processes read no event.
@functools.cache
def _known(name: str) -> tuple[type[Event], list[tuple[str, Callable[[Any], Any], bool]]]:
    """Return the class of a kind; and name and reader of each field, and whether it has no default."""
    kind = _CLASSES[name]
    hints = get_type_hints(kind)
    return kind, [
        (item.name, shape_of(hints[item.name]).read, item.default is dataclasses.MISSING)
        for item in dataclasses.fields(kind)
    ]
