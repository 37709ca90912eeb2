"""Checks of distributed tests at collection: errors that show before a rank is started."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable
from typing import Any

import pytest

from dist_testing.errors import UsageError
from dist_testing.frontends.pytest.marked_items import PLUGIN, fixture_module, library_marker
from dist_testing.frontends.pytest.marker import Distributed, marker_name
from dist_testing.frontends.unittest.world_case import WorldCase

__all__ = ["check_function", "check_item", "function_of", "is_multi_process", "parametrize_world_size"]


def parametrize_world_size(metafunc: pytest.Metafunc, sizes_of: Callable[[str, Distributed], tuple[int, ...]]) -> None:
    """Make one case per world size of a marked test.

    Args:
        metafunc: pytest's object for any test, marked or not.
        sizes_of: Returns the world sizes of a marked test, from its node id and its marker.

    Raises:
        UsageError: If the test cannot run on ranks.
    """
    name = metafunc.definition.nodeid
    marker = library_marker(metafunc.definition)
    if marker is None:
        # The marker may come later: from a parameter, or from a conftest.
        return
    check_function(metafunc.definition)
    sizes = sizes_of(name, marker)
    if "world_size" not in metafunc.fixturenames:
        metafunc.fixturenames.append("world_size")
    ids: list[Any] = [f"world_size={size}" for size in sizes] if len(sizes) > 1 else [pytest.HIDDEN_PARAM]
    metafunc.parametrize("world_size", sizes, indirect=True, ids=ids)


def check_item(item: pytest.Item) -> None:
    """Refuse a marked test that pytest does not run as a function.

    Raises:
        UsageError: If it is a method of a unittest class.
    """
    cls = getattr(item, "cls", None)
    if isinstance(cls, type) and issubclass(cls, unittest.TestCase):
        way_out = (
            "Take the marker off, also from the module: attributes of the class, such as world_size, say the same."
            if issubclass(cls, WorldCase)
            else "Derive the class from dist_testing.MultiProcessTestCase, or make it a class without a base."
        )
        raise UsageError(
            f"{item.nodeid}: @pytest.mark.{marker_name(item.config)} on a method of a unittest class.\n"
            "The marker is for functions and for classes that pytest runs; unittest has its own way to run a method.\n"
            f"{way_out}"
        )


def is_multi_process(item: pytest.Item) -> bool:
    """Return whether the item is a method of a unittest class that runs on ranks."""
    cls = getattr(item, "cls", None)
    return isinstance(cls, type) and issubclass(cls, WorldCase)


def function_of(item: pytest.Item) -> Any:
    """Return the test function of an item, not bound to an instance; None if it has none."""
    # Not `item.obj`: for that pytest makes an instance of a unittest class.
    owner = getattr(item, "cls", None) or getattr(item.getparent(pytest.Module), "obj", None)
    return getattr(owner, getattr(item, "originalname", item.name), None)


def check_function(definition: pytest.Function) -> None:
    """Refuse a marked function that cannot run on the ranks of its world.

    Args:
        definition: The test function, or one of its items.

    Raises:
        UsageError: If it is asynchronous, or its `world_size` is not the marker's.
    """
    name = definition.nodeid
    if inspect.iscoroutinefunction(definition.function) or inspect.isasyncgenfunction(definition.function):
        raise UsageError(
            f"{name}: the distributed test is an `async def`.\n"
            "A rank only calls the test, and the call of a coroutine function does not run its body.\n"
            "Make it a plain function; asyncio.run() in it runs a coroutine."
        )
    marker = marker_name(definition.config)
    for mark in definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        if "world_size" in ([part.strip() for part in names.split(",")] if isinstance(names, str) else names):
            raise UsageError(
                f"{name}: parametrize sets `world_size`.\n"
                "This is the size of the test's world, and only the marker sets it.\n"
                f"List the sizes there, each makes a case: @pytest.mark.{marker}(world_size=[2, 4])."
            )
    if fixture_module(definition, "world_size") != PLUGIN:
        raise UsageError(
            f"{name}: there is a fixture `world_size` that is not the library's.\n"
            "Its value and the real size of the world could differ.\n"
            f"Rename the fixture, and set the size in the marker: @pytest.mark.{marker}(world_size=2)."
        )
