"""Reads and validates the spec of a target, which the build rules write.

A spec is JSON in the environment of the test. Its schema has a number; this library reads its own schema and refuses
newer ones, because an unknown field could change the meaning of a test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeGuard

from dist_testing.core.ground.add_ons import AddOn, add_on_named, blaming, read_settings
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import SpecError, UsageError

# $DIST_TESTING_SPEC (internal): the spec of the target, from the build rules.
SPEC_VARIABLE = "DIST_TESTING_SPEC"
SCHEMA = 7
# The largest world of a case. Far above what one machine runs well: the bound turns a typing error into a text.
MAX_WORLD_SIZE = 1024
# Ranks of a test that states no size; torch's default.
DEFAULT_WORLD_SIZE = 4


@dataclass(frozen=True, slots=True)
class Spec:
    """What one target asks for, for one backend.

    Attributes:
        target: Label as a user types it, such as `//tests:pg_wrapper_gloo`; "" outside Bazel.
        backend: The backend.
        world_sizes: Numbers of ranks, never empty. A case that names no world size runs once with each.
        isolation: Name of the isolation (`core.launch.isolation`).
        srcs: Labels of the test files.
        text: The JSON text of the spec; "" outside Bazel.
        backend_names: Backends of the `dist_py_test` that the target belongs to; empty outside Bazel.
        settings: What the target and the command line ask of add-ons, by their names.
    """

    target: str
    backend: Backend
    world_sizes: tuple[int, ...]
    isolation: str
    srcs: tuple[str, ...] = ()
    text: str = ""
    backend_names: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_session(self) -> AddOn | None:
        """The add-on that makes the session of pytest for this target; None if the target has test files."""
        asked = (add_on_named(name, self.target) for name in self.settings)
        return next((add_on for add_on in asked if "session" in add_on.more), None)

    def promises(self, world_size: int) -> str:
        """Return what the configuration promises of the hardware for a world of this size; "" for nothing."""
        for name in self.settings:
            add_on = add_on_named(name, self.target)
            if add_on.promised:
                with blaming(name, "its promise"):
                    promise = str(add_on.load("promised")(self, world_size))
                if promise:
                    return promise
        return ""


def is_world_size(value: object) -> TypeGuard[int]:
    """Return whether `value` is a possible number of ranks: an int from 1 to MAX_WORLD_SIZE, and not a bool."""
    return type(value) is int and 1 <= value <= MAX_WORLD_SIZE


def number_in(text: str) -> int | None:
    """Return the whole number that a text of the user gives, of at most nine digits; None if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def check_world_size(subject: str, value: object, way_out: str) -> int:
    """Return `value`, if it is a possible number of ranks; else raise UsageError.

    Its text begins with `subject`, such as the name of the case, and ends with `way_out`.
    """
    if not is_world_size(value):
        raise UsageError(
            f"{subject}: world_size = {value!r}; expected a number of ranks from 1 to {MAX_WORLD_SIZE}.\n"
            "A world has at least one rank, and no machine runs more than that.\n"
            f"{way_out}"
        )
    return value


def program_of(target: str) -> str:
    """Return the program of a built target, as a person starts it in the root of the workspace.

    `target` is its label: `//package:name`, after the canonical name of another repository.
    """
    repository, _, path = target.lstrip("@").partition("//")
    parts = ["bazel-bin", *(["external", repository] if repository else []), *path.split(":")]
    return "/".join(part for part in parts if part)


def read_spec(text: str) -> Spec:
    """Read the spec of a target from the JSON text that the build rules wrote.

    Raises:
        SpecError: If the text is truncated, has another schema, or has a field that the build rules do not write so.
        AddOnError: If the target asks for an add-on that is missing.
        UsageError: If it asks an add-on for something impossible.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"{SPEC_VARIABLE} is not JSON: {error}.\n"
            f"It has {len(text)} characters; most likely it was cut off.\n"
            "Build the target again."
        ) from error
    fields: Mapping[str, Any] = content if isinstance(content, dict) else {}
    schema = _read(fields, "schema", Annotated[int, range(1, 1 << 31)])
    if schema > SCHEMA:
        raise SpecError(
            f"{SPEC_VARIABLE} has schema {schema}; this library reads schema {SCHEMA}.\n"
            "The build rules are newer than the Python package they are used with.\n"
            "Use both from one version of dist_testing."
        )
    if schema < SCHEMA:
        raise _refused(fields, "schema", str(SCHEMA))
    target = _read(fields, "target", str)
    try:
        backend = Backend.from_json(fields.get("backend"))
    except SpecError as error:
        raise _refused(fields, "backend", f"an entry of the backend table ({error})") from None
    spec = Spec(
        target=target,
        backend=backend,
        world_sizes=_read(fields, "world_sizes", tuple[Annotated[int, range(1, MAX_WORLD_SIZE + 1)], ...]),
        isolation=_read(fields, "isolation", str),
        srcs=_read(fields, "srcs", tuple[str, ...]),
        text=text,
        backend_names=_read(fields, "backends", tuple[str, ...]),
    )
    settings = fields.get("settings")
    if not isinstance(settings, dict):
        raise _refused(fields, "settings", "an object")
    return replace(spec, settings=read_settings(SPEC_VARIABLE, settings, spec))


def _read(fields: Mapping[str, Any], name: str, annotation: Any) -> Any:
    """Return a field that fits an annotation (`core.ground.codec`), and is not empty."""
    value = fields.get(name)
    shape = shape_of(annotation)
    if value in ("", []):
        raise _refused(fields, name, f"{shape.expected}, not empty")
    try:
        return shape.read(value)
    except WrongValueError:
        raise _refused(fields, name, shape.expected) from None


def _refused(fields: Mapping[str, Any], name: str, expected: str) -> SpecError:
    return not_of_build(f"{SPEC_VARIABLE} says {name} = {fields.get(name)!r}; expected {expected}")


def not_of_build(what: str) -> SpecError:
    """Return the error about something that only the build rules write, and did not write so: `what` is wrong."""
    return SpecError(
        f"{what}.\n"
        "It was not written by the build rules of this version of dist_testing.\n"
        "Build the target again; if the error stays, use the rules and the Python package of the same version."
    )
