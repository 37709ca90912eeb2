"""Turns dataclasses into JSON and back, and checks what it reads against the annotations.

A message between processes is a dataclass; messages that travel the same way form a `Family`, which has a schema
number. The checks are made once, from the annotations: `str`, `bool`, `int`, `float`, `object`, `Literal`, `tuple`,
`NamedTuple`, `dict[str, X]`, `Mapping[str, X]` and `X | None`; a field, or each item of a tuple of any length, can also
be an enumeration or another dataclass.
`Annotated[int, range(...)]` and `Annotated[float, LARGEST]` limit a number.

A dataclass with `is_open = True` is one that files keep: versions may differ. A field with its default value is not
written, a missing field gets its default, and an unknown one is ignored.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import reprlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from dist_testing.core.ground.errors import MessageError

# The largest message, a request for a world, has an environment of a few MiB at most.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
# The limit of an `int` without a range.
_MOST = 1 << 63
# An error shows this much of an unreadable message.
_SHOWN_BYTES = 80
# The last two lines of errors: the cause and the way out.
_NO_MESSAGE = (
    "Test code has used a descriptor that it did not open, or the processes have different versions.\n"
    "Let tests use only descriptors that they have opened; use one version of dist_testing everywhere."
)
_OTHER_SCHEMA = (
    "The two processes have loaded different versions of dist_testing.\n"
    "Run every process of the run in the same environment, with one version of dist_testing."
)

_encode_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

_Message = TypeVar("_Message")


class WrongValueError(Exception):
    """A value does not fit its annotation; the text says which value and what was expected."""


class Shape(NamedTuple):
    """The checks and conversions of one annotation.

    Attributes:
        expected: The annotation in words, for errors.
        read: Returns the Python value of a JSON value, or raises `WrongValueError`: "3; expected str".
        write: Returns the JSON value of a Python value; None if they are the same.
    """

    expected: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None


class Family(Generic[_Message]):
    """Messages that travel the same way, such as all orders to the fork server.

    Attributes:
        name: Name of one message in errors, such as "order to the fork server".
        schema: Number of this version of the family. Raise it with every change of a field.
        messages: The dataclasses.
        max_bytes: Size of the largest message that is sent or read.
    """

    def __init__(
        self,
        name: str,
        schema: int,
        messages: Sequence[type[_Message]],
        *,
        max_bytes: int = MAX_MESSAGE_BYTES,
        error: type[MessageError] = MessageError,
    ) -> None:
        """Make the checks of all messages. The arguments are the attributes, and the class of the errors."""
        self.name = name
        self.schema = schema
        self.messages = tuple(messages)
        self.max_bytes = max_bytes
        self._error = error
        # mypy does not know that they are dataclasses.
        classes: Sequence[Any] = messages
        self._shapes = {cls.__name__: _shape_of_dataclass(cls) for cls in classes}

    def to_wire(self, message: _Message) -> bytes:
        """Return the message as JSON; refuse one that is too large, or holds a number that JSON cannot express."""
        name = type(message).__name__
        write = self._shapes[name].write
        assert write is not None
        try:
            payload = _encode_json({"schema": self.schema, "message": name, **write(message)}).encode()
        except ValueError as error:
            raise self.refused(f"{name} cannot be sent: {error}") from error
        self.check_size(len(payload))
        return payload

    def from_wire(self, payload: bytes | bytearray | str) -> _Message:
        """Return the message that the JSON encodes; refuse all but this family and schema, with exactly its fields."""
        self.check_size(len(payload))
        try:
            content = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise self.refused(f"not JSON: {payload[:_SHOWN_BYTES]!r}") from error
        schema = content.pop("schema", None) if type(content) is dict else None
        if type(schema) is not int:
            raise self.refused(f"no message: {payload[:_SHOWN_BYTES]!r}")
        if schema != self.schema:
            what = f"the other process uses schema {_shown(schema)} and this one schema {self.schema}"
            raise self.refused(what, _OTHER_SCHEMA)
        name = content.pop("message", None)
        shape = self._shapes.get(name) if type(name) is str else None
        if shape is None:
            raise self.refused(f"unknown message {_shown(name)}; expected one of {', '.join(self._shapes)}")
        try:
            message: _Message = shape.read(content)
        except WrongValueError as error:
            raise self.refused(f"{name}: {error}") from None
        return message

    def check_size(self, length: int) -> None:
        """Refuse a message whose length, in bytes, is over the limit."""
        if length > self.max_bytes:
            raise self.refused(f"a message of {length} bytes; the limit is {self.max_bytes}")

    def refused(self, what: str, advice: str = _NO_MESSAGE) -> MessageError:
        """Return the error for a message of this family, with the problem in one line."""
        return self._error(f"{self.name}: {what}.\n{advice}")


@functools.cache
def _shape_of_dataclass(cls: type[Any]) -> Shape:
    hints = get_type_hints(cls, include_extras=True)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    shapes = {name: shape_of(hints[name]) for name in defaults}
    is_open: bool = getattr(cls, "is_open", False)
    needed = {name for name, default in defaults.items() if not is_open or default is dataclasses.MISSING}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise WrongValueError(f"{_shown(value)}; expected an object")
        unknown, missing = sorted(value.keys() - shapes) if not is_open else (), sorted(needed - value.keys())
        if unknown or missing:
            raise WrongValueError(
                "; ".join(
                    f"{adjective} {'field' if len(fields) == 1 else 'fields'} {_shown(fields)}"
                    for adjective, fields in (("unknown", unknown), ("missing", missing))
                    if fields
                )
            )
        values = {}
        for name, one in value.items():
            if shape := shapes.get(name):
                try:
                    values[name] = shape.read(one)
                except WrongValueError as error:
                    raise WrongValueError(f"{name} = {error}") from None
        try:
            return cls(**values)
        except ValueError as error:
            # The class checks that its fields fit together.
            raise WrongValueError(str(error)) from None

    def write(value: Any) -> dict[str, Any]:
        found = {}
        for name, shape in shapes.items():
            one = getattr(value, name)
            if not is_open or one != defaults[name]:
                found[name] = one if shape.write is None else shape.write(one)
        return found

    return Shape("an object", read, write)


def shape_of(annotation: Any) -> Shape:
    """Return the checks and conversions of an annotation; raise TypeError if messages do not support it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in (str, bool):
        return _simple(annotation.__name__, lambda value: type(value) is annotation)
    if annotation is int:
        return _simple("int", lambda value: type(value) is int and -_MOST <= value < _MOST)
    if annotation is float:
        return _shape_of_number("a finite number", sys.float_info.max)
    if origin is Annotated and arguments[0] is int:
        first, stop = arguments[1].start, arguments[1].stop
        return _simple(f"int from {first} to {stop - 1}", lambda value: type(value) is int and first <= value < stop)
    if origin is Annotated and arguments[0] is float:
        return _shape_of_number(f"a number of at most {arguments[1]:g}", arguments[1])
    if origin is Literal:
        return _shape_of_choice(arguments)
    if origin in (Union, types.UnionType) and arguments[1:] == (types.NoneType,):
        return _shape_of_optional(shape_of(arguments[0]))
    if annotation is object:
        return _simple("any value", lambda value: True)
    if origin is tuple and arguments[1:] == (...,):
        return _shape_of_items(shape_of(arguments[0]))
    if origin is tuple:
        return _shape_of_fixed([shape_of(argument) for argument in arguments], tuple)
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        # A NamedTuple. As its `_make`, without a second check of the number.
        items = [shape_of(hint) for hint in get_type_hints(annotation, include_extras=True).values()]
        return _shape_of_fixed(items, functools.partial(tuple.__new__, annotation))
    if origin in (dict, Mapping) and arguments[0] is str:
        item = shape_of(arguments[1])
        return _simple(
            f"an object of {item.expected}",
            lambda value: type(value) is dict,
            lambda value: {name: item.read(one) for name, one in value.items()},
        )._replace(write=dict)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _shape_of_choice(tuple(annotation))
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _shape_of_dataclass(annotation)
    raise TypeError(f"messages do not support the annotation {annotation!r}")


def _simple(expected: str, fits: Callable[[Any], bool], convert: Callable[[Any], Any] | None = None) -> Shape:
    def read(value: Any) -> Any:
        if fits(value):
            return value if convert is None else convert(value)
        raise WrongValueError(f"{_shown(value)}; expected {expected}")

    return Shape(expected, read)


def _shape_of_number(expected: str, largest: float) -> Shape:
    return _simple(expected, lambda value: type(value) in (float, int) and -largest <= value <= largest, float)


def _shape_of_choice(choices: Sequence[Any]) -> Shape:
    by_value = {choice.value if isinstance(choice, enum.Enum) else choice: choice for choice in choices}
    shape = _simple(
        f"one of {', '.join(map(repr, by_value))}",
        lambda value: type(value) is str and value in by_value,
        by_value.__getitem__,
    )
    return shape._replace(write=lambda value: value.value if isinstance(value, enum.Enum) else value)


def _shape_of_optional(item: Shape) -> Shape:
    expected = f"{item.expected} or null"

    def read(value: Any) -> Any:
        if value is None:
            return None
        try:
            return item.read(value)
        except WrongValueError:
            raise WrongValueError(f"{_shown(value)}; expected {expected}") from None

    return Shape(expected, read)


def _shape_of_items(item: Shape) -> Shape:
    expected, write = f"a list, each {item.expected}", item.write

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise WrongValueError(f"{_shown(value)}; expected {expected}")
        return tuple(map(item.read, value))

    return Shape(expected, read, None if write is None else lambda value: [write(one) for one in value])


def _shape_of_fixed(items: Sequence[Shape], convert: Callable[[Iterable[Any]], Any]) -> Shape:
    return _simple(
        f"a list of {', '.join(item.expected for item in items)}",
        lambda value: type(value) is list and len(value) == len(items),
        lambda parts: convert([item.read(part) for item, part in zip(items, parts, strict=True)]),
    )


def _shown(value: object) -> str:
    """Return a short text of a value, for an error."""
    return reprlib.repr(value)
