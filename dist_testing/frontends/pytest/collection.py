"""Checks of distributed tests at collection: errors that show before a rank is started."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable
from typing import Any

import pytest

from dist_testing.errors import UsageError
from dist_testing.frontends.pytest.marker import Distributed, read_marker
from dist_testing.frontends.unittest.world_case import WorldCase

__all__ = ["check_item", "function_of", "is_multi_process", "parametrize_world_size"]


def parametrize_world_size(
    metafunc: pytest.Metafunc, plugin: str, sizes_of: Callable[[str, Distributed], tuple[int, ...]]
) -> None:
    """Make one case per world size of a marked test.

    Args:
        metafunc: pytest's object for any test, marked or not.
        plugin: Module of the fixtures `world` and `world_size`.
        sizes_of: Returns the world sizes of a marked test, from its node id and its marker.

    Raises:
        UsageError: If the test cannot run on ranks, or uses `world` without the marker.
    """
    name = metafunc.definition.nodeid
    marker = read_marker(metafunc.definition)
    if marker is None:
        if _fixture_module(metafunc, "world") == plugin:
            raise UsageError(
                f"{name} uses the fixture `world` without the marker.\n"
                "Only a test that runs on ranks has a world.\n"
                "Mark it with @pytest.mark.distributed."
            )
        return
    _check_function(name, metafunc.function)
    _check_world_size(metafunc, plugin)
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
            f"{item.nodeid}: @pytest.mark.distributed on a method of a unittest class.\n"
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


def _check_function(name: str, function: object) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{name}: the distributed test is an `async def`.\n"
            "A rank only calls the test, and the call of a coroutine function does not run its body.\n"
            "Make it a plain function; asyncio.run() in it runs a coroutine."
        )


def _check_world_size(metafunc: pytest.Metafunc, plugin: str) -> None:
    name = metafunc.definition.nodeid
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        if "world_size" in ([part.strip() for part in names.split(",")] if isinstance(names, str) else names):
            raise UsageError(
                f"{name}: parametrize sets `world_size`.\n"
                "This is the size of the test's world, and only the marker sets it.\n"
                "List the sizes there, each makes a case: @pytest.mark.distributed(world_size=[2, 4])."
            )
    if _fixture_module(metafunc, "world_size") != plugin:
        raise UsageError(
            f"{name}: there is a fixture `world_size` that is not the library's.\n"
            "Its value and the real size of the world could differ.\n"
            "Rename the fixture, and set the size in the marker: @pytest.mark.distributed(world_size=2)."
        )


def _fixture_module(metafunc: pytest.Metafunc, name: str) -> str | None:
    """Return the module of the fixture that the test gets under this name; None if it does not use one."""
    manager: Any = metafunc.definition.session._fixturemanager
    known = metafunc._arg2fixturedefs.get(name) if name in metafunc.fixturenames else None
    if name == "world_size" and known is None:
        # A marked test gets it even if it does not name it.
        known = manager.getfixturedefs(name, metafunc.definition)
    return known[-1].func.__module__ if known else None
