"""Brings the values of ranks to the caller as data: the caller runs no code that a rank has sent."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dist_testing.core.ground.error_text import summarise
from dist_testing.core.ground.errors import UsageError

# Values in containers are searched to this depth for the one that cannot travel.
_MAX_DEPTH = 20
# Types of values that can travel in any case.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CAUSE = (
    "Values come back as data: tensors, numbers, strings, bytes, None, and lists, tuples, dicts and sets of them. "
    "Objects of other classes would need code of the rank."
)


def value_file(folder: str | Path, rank: int) -> Path:
    """Return the file that takes the value of a rank."""
    return Path(folder, f"value-{rank}")


def write_value(value: object, name: str, folder: str, rank: int) -> None:
    """Write what the function `name` has returned on this rank, for the caller; refuse what cannot travel as data."""
    # Most functions return nothing, and no file says so.
    if value is None:
        return
    try:
        content = _packed(value)
    except Exception as error:
        place, found = _culprit("", value, _MAX_DEPTH)
        # torch's text about its own files would mislead.
        why = "" if isinstance(error, pickle.UnpicklingError) else f": {' '.join(summarise(error).split())}"
        raise UsageError(
            f"run({name}): rank {rank} has returned a value{f' with {place}' if place else ''} of type "
            f"{_type_name(found)}, which cannot travel to the caller{why or '.'}\n{_CAUSE}\n{_advice(found)}"
        ) from None
    value_file(folder, rank).write_bytes(content)


def read_value(folder: str | Path, rank: int) -> Any:
    """Return the value of a rank that has passed; its tensors are on the CPU. A damaged file raises any exception."""
    path = value_file(folder, rank)
    return _read(path) if path.exists() else None


def _packed(value: object) -> memoryview:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    # What fails in the caller fails here, on the rank that is to blame.
    _read(buffer)
    return buffer.getbuffer()


def _read(file: Path | io.BytesIO) -> Any:
    import torch

    return torch.load(file, weights_only=True, map_location="cpu")


def _culprit(place: str, value: object, depth: int) -> tuple[str, object]:
    """Return the place and the object that cannot travel: the first one inside containers, else the whole value."""
    for inner_place, inner in _items(place, value) if depth else ():
        # An attempt takes some 100 us, and a list may have a million numbers.
        if type(inner) not in _PLAIN:
            try:
                _packed(inner)
            except Exception:
                return _culprit(inner_place, inner, depth - 1)
    return place, value


def _items(place: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield what is in a container, with its place."""
    if isinstance(value, dict) and type(value) in (dict, OrderedDict):
        for key, inner in value.items():
            yield f"{place} key {key!r:.60}".strip(), key
            yield f"{place}[{key!r:.60}]", inner
    elif isinstance(value, set) and type(value) is set:
        for inner in value:
            yield f"{place} member".strip(), inner
    elif isinstance(value, list | tuple) and type(value) in (list, tuple):
        for index, inner in enumerate(value):
            yield f"{place}[{index}]", inner


def _type_name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _advice(value: object) -> str:
    if type(value).__module__.partition(".")[0] == "numpy":
        return "Return torch.from_numpy(array) for an array, or value.item() for a number of numpy."
    if hasattr(value, "state_dict"):
        return "Return value.state_dict() in its place."
    if isinstance(value, Mapping):
        return "Return dict(value) in its place."
    return "Return its parts that are data, or write it to a file of the rank."
