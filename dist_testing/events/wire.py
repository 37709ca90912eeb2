"""The kinds of events, and how an event is read again from its wire form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from dist_testing.events.cases import (
    CaseAsked,
    CaseEnded,
    CaseJudged,
    CleanedUp,
    LeaseWaitBegan,
    LeaseWaitEnded,
    RankOutcomeKnown,
    RankOutput,
    RankPhases,
    RankReady,
    RankStarted,
    RankWarned,
    WorldAsked,
)
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

# Raised when a kind or a field is removed or changes its meaning. A new one does not raise it: readers leave out what
# they do not know.
SCHEMA = 1

KINDS: tuple[type[Event], ...] = (
    RunStarted,
    TestsCollected,
    TestBegan,
    TestReported,
    TestEnded,
    CaseAsked,
    LeaseWaitBegan,
    LeaseWaitEnded,
    WorldAsked,
    RankStarted,
    RankReady,
    RankPhases,
    RankOutput,
    RankWarned,
    RankOutcomeKnown,
    CaseJudged,
    CleanedUp,
    CaseEnded,
    RunEnded,
    StreamCut,
)


def event_of(wire: object) -> Event | None:
    """Make an event of its wire form.

    Args:
        wire: What `Event.to_wire` has returned, perhaps by way of JSON.

    Returns:
        The event, without the fields that its class does not have; None if its kind is not known here.

    Raises:
        ValueError: If it is no event: no kind, a field that is missing, or one of another type.
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
            except (TypeError, ValueError):
                expected = read.__name__.strip("_").replace("_", " ")
                raise ValueError(f"{kind.kind}: {name} = {wire[name]!r:.100}; expected {expected}") from None
        elif is_needed:
            raise ValueError(f"{kind.kind}: {name} is missing")
    return kind(**values)


def _exactly(cls: type, value: object) -> Any:
    # A bool is an int to isinstance.
    if type(value) is not cls:
        raise TypeError
    return value


def _a_text(value: object) -> str:
    return str(_exactly(str, value))


def _a_whole_number(value: object) -> int:
    return int(_exactly(int, value))


def _a_number(value: object) -> float:
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


# By the annotation of the field. The names of the functions are what an error says was expected.
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

# By the name of the kind: its class, and for each field its name, what reads its value, and whether it has no default.
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
