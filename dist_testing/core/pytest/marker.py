"""Reads and checks the arguments of the library's marker, `@pytest.mark.distributed` if no ini option renames it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from dist_testing.core.ground.add_ons import read_settings
from dist_testing.core.ground.backends import Backend, check_backend_name, check_features
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, is_timeout
from dist_testing.core.ground.error_text import did_you_mean
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import are_exits
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

    Arguments of a parameter's marker override those of the function's own, then come the class, its base classes and
    the module. If the ini option `dist_marker` names the marker, its one positional argument is `world_size`.

    Raises:
        UsageError: If an argument is unknown or its value is impossible.
    """
    arguments: dict[str, Any] = {}
    named = marker_name(definition.config)
    marks: list[pytest.Mark] = []
    for node in definition.listchain():
        # The closest one comes last; in a class, pytest has those of its base classes first.
        marks += node.own_markers if isinstance(node, pytest.Class) else reversed(node.own_markers)
    # pytest has those of a parameter behind the function's own.
    marks += getattr(getattr(definition, "callspec", None), "marks", ())
    marks = [mark for mark in marks if mark.name == named]
    if not marks:
        return None
    own = [mark for mark in getattr(getattr(definition, "obj", None), "pytestmark", ()) if mark in marks]
    for name in {name for mark in own for name in mark.kwargs}:
        if len(values := {repr(mark.kwargs[name]) for mark in own if name in mark.kwargs}) > 1:
            twice = f"{name} = {' and '.join(sorted(values))}, in two markers of one function"
            raise _wrong(definition, twice, "One of them would not count", "Leave one out.")
    for mark in marks:
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
    given = {name: value for name, value in arguments.items() if value is not None and name in _RULES}
    for name, value in given.items():
        is_possible, rule = _RULES[name]
        if not is_possible(value):
            raise _wrong(definition, f"{name} = {value!r}", rule.format(isolations=", ".join(isolation_names())))
        if isinstance(value, list):
            given[name] = tuple(value)
    if type(size := given.get("world_size")) is int:
        given["world_size"] = (size,)
    try:
        for backend in given.get("backends", ()):
            check_backend_name(backend)
        check_features(given.get("features", ()))
    except UsageError as error:
        raise UsageError(f"{definition.nodeid}: @pytest.mark.{marker_name(definition.config)}: {error}") from error
    asked = {name: value for name, value in arguments.items() if name not in _RULES}
    return Distributed(**given, settings=read_settings(definition.nodeid, asked))


def _wrong(definition: Any, given: str, rule: str, way_out: str = "Correct it, or leave it out.") -> UsageError:
    name = marker_name(definition.config)
    return UsageError(f"{definition.nodeid}: @pytest.mark.{name} with {given}.\n{rule}.\n{way_out}")


def _are_sizes(value: Any) -> bool:
    sizes = value if isinstance(value, list | tuple) else [value]
    return bool(sizes) and all(map(is_world_size, sizes)) and len(set(sizes)) == len(sizes)


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) for name in value)


# Argument to whether its value is possible, and the rule for it.
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "world_size": (_are_sizes, f"It is a number from 1 to {MAX_WORLD_SIZE}, or a list of such numbers, each once"),
    "init": (lambda value: isinstance(value, bool), "It is True or False"),
    "timeout": (is_timeout, f"It is a number of seconds above 0, up to {MAX_TIMEOUT_S}"),
    "isolation": (lambda value: value in isolation_names(), "It is one of {isolations}"),
    "expected_exits": (are_exits, "It maps ranks to exit codes, at most 255; a negative code is a signal"),
    "backends": (_are_names, "It is a list of names"),
    "features": (_are_names, "It is a list of names"),
    "strict_collectives": (lambda value: isinstance(value, bool), "It is True or False"),
}
