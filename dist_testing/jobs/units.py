"""Divides the items of a session into units: items that have to run in one process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dist_testing.core.pytest.marked_items import is_marked, is_multi_process

# pytest's own fixture of each unittest class. `_has_class_setup` looks at what it calls.
_OF_UNITTEST = "_unittest_setUpClass"
# Packages whose own setUpClass and tearDownClass do nothing that two processes could not both do.
_HARMLESS = ("dist_testing", "torch", "unittest")
_CLASS_METHODS = ("setUpClass", "tearDownClass")


def units_of(items: Sequence[pytest.Item], shared_ranks: Callable[[pytest.Item], str]) -> list[list[int]]:
    """Return the places of the items in each unit, in the order of the first ones. Items without ranks are left out.

    Items are together if they share ranks, or a fixture of their class, module or package that is set up in the runner:
    that is so for methods of unittest classes, while the fixtures of marked tests are set up on the ranks.
    """
    found: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        if is_marked(item) or is_multi_process(item):
            found.setdefault(_unit(item, place, shared_ranks(item)), []).append(place)
    return list(found.values())


def _unit(item: pytest.Item, place: int, shared: str) -> str:
    scope = "" if is_marked(item) else _widest_scope(item)
    if scope == "package":
        return f"package {_nodeid(item, pytest.Package) or _nodeid(item, pytest.Module)}"
    if scope == "module":
        return f"module {_nodeid(item, pytest.Module)}"
    if shared:
        return f"ranks {shared}"
    if scope == "class" or _has_class_setup(item):
        return f"class {_nodeid(item, pytest.Class)}"
    return f"item {place}"


def _nodeid(item: pytest.Item, kind: type[pytest.Collector]) -> str:
    parent = item.getparent(kind)
    return parent.nodeid if parent is not None else ""


def _widest_scope(item: pytest.Item) -> str:
    """Return the widest scope, below the session's, of the fixtures of a unittest method; "" if it has none."""
    info: Any = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.items() if info is not None else ()
    scopes = {known[-1].scope for name, known in definitions if known and not name.startswith(_OF_UNITTEST)}
    return next((scope for scope in ("package", "module", "class") if scope in scopes), "")


def _has_class_setup(item: pytest.Item) -> bool:
    """Return whether the class of a unittest method prepares something for all its methods."""
    cls = getattr(item, "cls", None)
    for base in getattr(cls, "__mro__", ()):
        if base.__module__.partition(".")[0] not in _HARMLESS and any(name in vars(base) for name in _CLASS_METHODS):
            return not is_marked(item)
    return False
