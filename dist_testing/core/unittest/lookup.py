"""Names of test classes: the runner sends a name, and a rank finds the class by it."""

from __future__ import annotations

import functools
import importlib
import sys
import unittest
from collections.abc import Iterator
from typing import Any

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.unittest.unittest_messages import ClassName

# A fresh interpreter has the main module under the second name, as multiprocessing does.
_MAIN = ("__main__", "__mp_main__")


def class_name(cls: type[unittest.TestCase]) -> ClassName:
    """Return the name of a class, by which `find_class` finds it in another process."""
    module, qualname = cls.__module__, cls.__qualname__
    place = None if _attribute(module, qualname) is cls else _namesakes(module, qualname).index(cls)
    return ClassName(module, qualname, place)


def find_class(name: ClassName) -> Any:
    """Return the class of that name in this process; import its module if necessary.

    Raises:
        UsageError: If there is no such class.
    """
    module, qualname = name.module, name.qualname
    found = _find(module, qualname, name.place)
    if found is None and module not in sys.modules:
        importlib.import_module(module)
        found = _find(module, qualname, name.place)
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
