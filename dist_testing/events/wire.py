"""Lists the kinds of events, and makes an event from its wire form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from dist_testing.events.cases import CASE_KINDS
from dist_testing.events.event import Event, Phase
from dist_testing.events.runs import (
    RunEnded,
    RunStarted,
    StreamCut,
    TestBegan,
    TestEnded,
    TestReported,
    TestsCollected,
)

__all__ = ["KINDS", "SCHEMA", "event_of"]

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
        wire: Result of `Event.to_wire`, also after a round trip through JSON.

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
    kind, fields = known
    values = {}
    for name, read, is_needed in fields:
        if name in wire:
            try:
                values[name] = read(wire[name])
            except (OverflowError, TypeError, ValueError):
                expected = read.__name__.strip("_").replace("_", " ")
                raise ValueError(f"{kind.kind}: {name} = {wire[name]!r:.100}; expected {expected}") from None
        elif is_needed:
            raise ValueError(f"{kind.kind}: {name} is missing")
    return kind(**values)


def _exactly(cls: type, value: object) -> Any:
    # isinstance takes a bool for an int.
    if type(value) is not cls:
        raise TypeError
    return value


def _a_text(value: object) -> str:
    return str(_exactly(str, value))


def _a_whole_number(value: object) -> int:
    return int(_exactly(int, value))


def _a_number(value: object) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    number = float(value) if type(value) in (int, float) else math.nan  # type: ignore[arg-type]  # just looked at
    if not math.isfinite(number):
        raise ValueError
    return number


def _true_or_false(value: object) -> bool:
    return bool(_exactly(bool, value))


def _a_number_or_null(value: object) -> int | None:
    return None if value is None else _a_whole_number(value)


def _list(value: object) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError
    return list(value)


def _a_list_of_numbers(value: object) -> tuple[int, ...]:
    return tuple(map(_a_whole_number, _list(value)))


def _a_list_of_texts(value: object) -> tuple[str, ...]:
    return tuple(map(_a_text, _list(value)))


def _a_list_of_phases(value: object) -> tuple[Phase, ...]:
    return tuple(
        Phase(_a_text(name), _a_number(begin), _a_number(end)) for name, begin, end in map(_list, _list(value))
    )


def _a_list_of_pairs(value: object) -> tuple[tuple[str, object], ...]:
    return tuple((_a_text(name), item) for name, item in map(_list, _list(value)))


def _texts_by_name(value: object) -> dict[str, str]:
    return {_a_text(name): _a_text(item) for name, item in _exactly(dict, value).items()}


# Annotation of a field to the function that reads it. An error uses the function's name as the expected type.
_READERS: dict[str, Callable[[Any], Any]] = {
    "str": _a_text,
    "int": _a_whole_number,
    "float": _a_number,
    "bool": _true_or_false,
    "int | None": _a_number_or_null,
    "tuple[int, ...]": _a_list_of_numbers,
    "tuple[str, ...]": _a_list_of_texts,
    "tuple[Phase, ...]": _a_list_of_phases,
    "tuple[tuple[str, object], ...]": _a_list_of_pairs,
    "dict[str, str]": _texts_by_name,
}

# Name of a kind to its class, and for each field: name, reader, and whether it has no default.
_FIELDS = {
    kind.kind: (
        kind,
        [
            (item.name, _READERS[str(item.type)], item.default is dataclasses.MISSING)
            for item in dataclasses.fields(kind)
        ],
    )
    for kind in KINDS
}
