"""Names of test classes: the runner sends a name, and a rank finds the class by it."""

from __future__ import annotations

import functools
import importlib
import sys
import unittest
from collections.abc import Iterator, Mapping
from typing import Any

from dist_testing.errors import UsageError
from dist_testing.launch.isolation import FORK

__all__ = ["class_name", "find_class"]

# A fresh interpreter has the main module under the second name, as multiprocessing does.
_MAIN = ("__main__", "__mp_main__")


def class_name(cls: type[unittest.TestCase]) -> dict[str, Any]:
    """Return the name of a class as JSON values: its module and qualified name.

    A class that this name does not lead to (made with `type()`, or inside a function) also gets its index among all
    classes of that name, in the order of their creation.
    """
    module, qualname = cls.__module__, cls.__qualname__
    place = None if _attribute(module, qualname) is cls else _namesakes(module, qualname).index(cls)
    return {"module": module, "qualname": qualname, "place": place}


def find_class(name: Mapping[str, Any]) -> Any:
    """Return the class of that name in this process; imports its module if necessary.

    Raises:
        UsageError: If there is no such class.
    """
    module, qualname = name["module"], name["qualname"]
    found = _find(module, qualname, name["place"])
    if found is None and module not in sys.modules:
        importlib.import_module(module)
        found = _find(module, qualname, name["place"])
    if found is None:
        raise UsageError(
            f"{module}.{qualname} does not exist on the rank.\n"
            "The class was made while tests ran, or by code that a fresh interpreter does not run.\n"
            f'Make it when its module is imported, or use isolation = "{FORK.name}".'
        )
    return found


def _find(module: str, qualname: str, place: int | None) -> Any:
    if place is None:
        return _attribute(module, qualname)
    return next(iter(_namesakes(module, qualname)[place:]), None)


def _attribute(module: str, qualname: str) -> Any:
    try:
        return functools.reduce(getattr, qualname.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None


def _namesakes(module: str, qualname: str) -> list[type]:
    modules = _MAIN if module in _MAIN else (module,)
    return [
        cls
        for cls in dict.fromkeys(_below(unittest.TestCase))
        if cls.__qualname__ == qualname and cls.__module__ in modules
    ]


def _below(cls: type) -> Iterator[type]:
    subclasses: list[type] = cls.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from _below(subclass)
