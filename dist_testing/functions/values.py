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
_CAUSE = (
    "Values come back as data: tensors, numbers, strings, bytes, None, and lists, tuples, dicts and sets of them. "
    "Objects of other classes would need code of the rank."
)


def value_file(folder: str | Path, rank: int) -> Path:
    """Return the file that takes the value of a rank."""
    return Path(folder, f"value-{rank}")


def write_value(value: object, name: str, folder: str, rank: int) -> None:
    """Write what a function has returned on a rank, for the caller.

    Args:
        value: The value.
        name: Name of the function, for the error text.
        folder: The folder of the call.
        rank: This rank.

    Raises:
        UsageError: If the value cannot travel as data.
    """
    # Most functions return nothing, and no file says so.
    if value is None:
        return
    import torch

    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        # The caller reads it so. What fails there fails here, on the rank that is to blame.
        torch.load(buffer, weights_only=True, map_location="cpu")
    except Exception as error:
        place, found = _culprit(value)
        # torch's text about its own files would mislead.
        why = "" if isinstance(error, pickle.UnpicklingError) else f": {' '.join(summarise(error).split())}"
        raise UsageError(
            f"run({name}): rank {rank} has returned {place} of type {_type_name(found)}, which cannot travel to the "
            f"caller{why or '.'}\n{_CAUSE}\n{_advice(found)}"
        ) from None
    value_file(folder, rank).write_bytes(buffer.getbuffer())


def read_value(folder: str | Path, rank: int) -> Any:
    """Return the value of a rank that has passed; its tensors are on the CPU.

    Raises:
        Exception: If the file is not what `write_value` has written.
    """
    import torch

    path = value_file(folder, rank)
    return torch.load(path, weights_only=True, map_location="cpu") if path.exists() else None


def _culprit(value: object) -> tuple[str, object]:
    """Return the place and the object that cannot travel: the first one inside containers, else the whole value."""
    found = next(_unfit("", value, _MAX_DEPTH), None)
    if found is None or not found[0]:
        return "a value", value
    return f"a value with {found[0]}", found[1]


def _unfit(place: str, value: object, depth: int) -> Iterator[tuple[str, object]]:
    if depth and type(value) in (dict, OrderedDict):
        assert isinstance(value, dict)
        for key, inner in value.items():
            yield from _unfit(f"{place} key {key!r:.60}" if not _is_plain(key) else "", key, 0)
            yield from _unfit(f"{place}[{key!r:.60}]", inner, depth - 1)
    elif depth and type(value) in (list, tuple, set):
        assert isinstance(value, list | tuple | set)
        for index, inner in enumerate(value):
            inner_place = f"{place} member" if isinstance(value, set) else f"{place}[{index}]"
            yield from _unfit(inner_place, inner, depth - 1)
    elif not _is_plain(value):
        yield place.strip(), value


def _is_plain(value: object) -> bool:
    import torch

    plain = (bool, int, float, complex, str, bytes, bytearray, type(None), torch.Size, torch.dtype, torch.device)
    if type(value) in plain or type(value) in (torch.Tensor, torch.nn.Parameter):
        return True
    return type(value) is tuple and all(map(_is_plain, value))


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
