"""Reads and checks the arguments of the library's marker, `@pytest.mark.distributed` if no ini option renames it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from dist_testing.core.ground.add_ons import read_settings
from dist_testing.core.ground.backends import Backend, check_backend_name, check_features
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, is_timeout
from dist_testing.core.ground.error_text import did_you_mean
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import MAX_WORLD_SIZE, is_world_size
from dist_testing.core.launch.isolation import isolation_names
from dist_testing.core.pytest.options import MARKER_OPTION, argument_texts, marker_name

# The way out where the marker is another one than the library's.
_OTHER_PROJECT = (
    "If the marker is the project's own, give the library's another name, in pytest's ini file: "
    f"{MARKER_OPTION} = ranks"
)


@dataclass(frozen=True, slots=True)
class Distributed:
    """The marker's arguments, as `options.argument_texts` describes them, and the settings of add-ons, by their names.

    For an empty one, or None, the target, the command line or the backend decides.
    """

    world_size: tuple[int, ...] = ()
    init: bool = True
    timeout: float | None = None
    isolation: str = ""
    expected_exits: Mapping[int, int] = field(default_factory=dict)
    backends: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    strict_collectives: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def is_for(self, backend: Backend) -> bool:
        """Whether the test is for a backend."""
        return (not self.backends or backend.name in self.backends) and set(self.features) <= set(backend.features)


def read_marker(definition: pytest.Function | Any) -> Distributed | None:
    """Return the marker of a test function; None if it has none.

    Arguments of the function's own marker override those of its class's marker, and those the module's. If the ini
    option `dist_marker` names the marker, its one positional argument is `world_size`.

    Raises:
        UsageError: If an argument is unknown or its value is impossible.
    """
    arguments: dict[str, Any] = {}
    marks = list(definition.iter_markers(marker_name(definition.config)))
    if not marks:
        return None
    own = [mark for mark in getattr(getattr(definition, "obj", None), "pytestmark", ()) if mark in marks]
    for name in {name for mark in own for name in mark.kwargs}:
        if len(values := {repr(mark.kwargs[name]) for mark in own if name in mark.kwargs}) > 1:
            twice = f"{name} = {' and '.join(sorted(values))}, in two markers of one function"
            raise _wrong(definition, twice, "One of them would not count", "Leave one out.")
    for mark in reversed(marks):
        if len(mark.args) == 1 and "world_size" not in mark.kwargs and definition.config.getini(MARKER_OPTION):
            # The project has said that its marker is the library's, and others write `@pytest.mark.world_size(2)`.
            arguments["world_size"] = mark.args[0]
        elif mark.args:
            raise _wrong(
                definition,
                f"positional arguments {mark.args!r}",
                "It takes keyword arguments only",
                f"Write world_size=4, for example. {_OTHER_PROJECT}",
            )
        arguments |= mark.kwargs
    known = argument_texts()
    if unknown := min(arguments.keys() - known, default=""):
        otherwise = f"Leave it out, or install the add-on {unknown!r} if it is a setting of one. {_OTHER_PROJECT}"
        way_out = did_you_mean(unknown, known, otherwise)
        raise _wrong(definition, f"{unknown} = {arguments[unknown]!r}", f"It takes {', '.join(known)}", way_out)
    given = {
        name: _READERS[name](definition, f"{name} = {value!r}", value)
        for name, value in arguments.items()
        if value is not None and name in _READERS
    }
    asked = {name: value for name, value in arguments.items() if name not in _READERS}
    return Distributed(**given, settings=read_settings(definition.nodeid, asked))


def _world_sizes(definition: Any, given: str, value: object) -> tuple[int, ...]:
    sizes: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    if not sizes or not all(map(is_world_size, sizes)):
        raise _wrong(definition, given, f"It is a number from 1 to {MAX_WORLD_SIZE}, or a list of such numbers")
    if len(set(sizes)) < len(sizes):
        raise _wrong(definition, given, "Each size makes one case", "Name each once.")
    return tuple(sizes)


def _true_or_false(definition: Any, given: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(definition, given, "It is True or False")
    return value


def _timeout(definition: Any, given: str, value: object) -> float:
    if not is_timeout(value):
        raise _wrong(definition, given, f"It is a number of seconds above 0, up to {MAX_TIMEOUT_S}")
    return float(value)


def _isolation(definition: Any, given: str, value: object) -> str:
    if not isinstance(value, str) or value not in isolation_names():
        raise _wrong(definition, given, f"It is one of {', '.join(isolation_names())}")
    return value


def _exits(definition: Any, given: str, value: object) -> dict[int, int]:
    if not isinstance(value, dict) or not all(
        type(rank) is int and type(code) is int and rank >= 0 for rank, code in value.items()
    ):
        raise _wrong(definition, given, "It maps ranks to exit codes; a negative code is a signal")
    return value


def _names(definition: Any, given: str, value: object, check: Callable[[str], object]) -> tuple[str, ...]:
    names = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise _wrong(definition, given, "It is a list of names")
    for name in names:
        try:
            check(name)
        except UsageError as error:
            raise UsageError(
                f"{definition.nodeid}: @pytest.mark.{marker_name(definition.config)} with {given}.\n{error}"
            ) from error
    return tuple(names)


def _wrong(definition: Any, given: str, rule: str, way_out: str = "Correct it, or leave it out.") -> UsageError:
    name = marker_name(definition.config)
    return UsageError(f"{definition.nodeid}: @pytest.mark.{name} with {given}.\n{rule}.\n{way_out}")


# Argument to the function that checks its value, and returns it as `Distributed` has it.
_READERS: dict[str, Callable[[Any, str, object], Any]] = {
    "world_size": _world_sizes,
    "init": _true_or_false,
    "timeout": _timeout,
    "isolation": _isolation,
    "expected_exits": _exits,
    "backends": partial(_names, check=check_backend_name),
    "features": partial(_names, check=lambda name: check_features([name])),
    "strict_collectives": _true_or_false,
}
