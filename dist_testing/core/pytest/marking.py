"""Finds errors of marked tests before a rank is started, and marks the items of a session that run on ranks.

A marker can come late: from a parameter (`pytest.param(1, marks=...)`), or from a hook of a conftest. Such a test has
one world size, because its parameters exist already.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.pytest.marked_items import (
    MARKER_KEY,
    PLUGIN,
    SIZE_KEY,
    check_meaning,
    fixture_module,
    has_other_meaning,
    is_marked,
    is_method_of_unittest,
    is_multi_process,
    item_marker,
)
from dist_testing.core.pytest.marker import Distributed, read_marker
from dist_testing.core.pytest.marker_name import marker_name

# Set when `mark_items` has read all markers.
_IS_COMPLETE_KEY = pytest.StashKey[bool]()


def parametrize_world_size(metafunc: pytest.Metafunc, sizes_of: Callable[[str, Distributed], tuple[int, ...]]) -> None:
    """Make one case per world size, if the test is marked.

    `sizes_of` returns the world sizes of a marked test, from its node id and its marker.

    Raises:
        UsageError: If the test cannot run on ranks.
    """
    name = metafunc.definition.nodeid
    marker = None if has_other_meaning(metafunc.config) else read_marker(metafunc.definition)
    if marker is None:
        # The marker may come later: from a parameter, or from a conftest. `mark_items` refuses one of two meanings.
        return
    _check_function(metafunc.definition)
    sizes = sizes_of(name, marker)
    if "world_size" not in metafunc.fixturenames:
        metafunc.fixturenames.append("world_size")
    ids: list[Any] = [f"world_size={size}" for size in sizes] if len(sizes) > 1 else [pytest.HIDDEN_PARAM]
    metafunc.parametrize("world_size", sizes, indirect=True, ids=ids)


def mark_items(
    config: pytest.Config, items: list[pytest.Item], sizes_of: Callable[[str, Distributed], tuple[int, ...]]
) -> None:
    """Mark the items that have the library's marker. Take out those with an error, which pytest then reports.

    `sizes_of` returns the world sizes of a marked item, from its node id and its marker.

    Raises:
        pytest.UsageError: If a marker is wrong, is on a method of a unittest class, or has two meanings.
    """
    wrong: dict[pytest.Item, UsageError] = {}
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        check_meaning(item)
        marker = item_marker(item)
        if marker is None:
            if name := _world_fixture(item):
                wrong[item] = UsageError(
                    f"{item.nodeid} uses the fixture `{name}` without the marker.\n"
                    "Only a test that runs on ranks has a world.\n"
                    f"Mark it with @pytest.mark.{marker_name(item.config)}."
                )
            continue
        _check_owner(item)
        try:
            _check_function(item)
            size = _world_size(item, sizes_of(item.nodeid, marker))
        except UsageError as error:
            wrong[item] = error
        else:
            item.stash[MARKER_KEY], item.stash[SIZE_KEY] = marker, size
    config.stash[_IS_COMPLETE_KEY] = True
    items[:] = [item for item in items if item not in wrong]
    for item, reason in wrong.items():
        item.ihook.pytest_collectreport(report=pytest.CollectReport(item.nodeid, "failed", str(reason), []))


def check_all_marked(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Refuse a marker that has come after `mark_items`: the test would run in the runner, and pass for no reason.

    Raises:
        pytest.UsageError: If there is such an item.
    """
    if not config.stash.get(_IS_COMPLETE_KEY, False):
        # pytest ends the collection also after an error, and then reports that error.
        return
    for item in items:
        if not is_marked(item) and item_marker(item) is not None:
            name = marker_name(config)
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.{name} was added after the markers had been read.\n"
                "The last part of pytest_collection_modifyitems reads them, so a wrapper of that hook, or a later "
                "hook, is too late.\n"
                "Add the marker in pytest_collection_modifyitems, without wrapper=True."
            )


def _check_owner(item: pytest.Function) -> None:
    if is_method_of_unittest(item):
        way_out = (
            "Take the marker off, also from the module: attributes of the class, such as world_size, say the same."
            if is_multi_process(item)
            else "Derive the class from dist_testing.MultiProcessTestCase, or make it a class without a base."
        )
        raise pytest.UsageError(
            f"{item.nodeid}: @pytest.mark.{marker_name(item.config)} on a method of a unittest class.\n"
            "The marker is for functions and for classes that pytest runs; unittest has its own way to run a method.\n"
            f"{way_out}"
        )


def _check_function(definition: pytest.Function) -> None:
    """Refuse a marked function, or an item of one, that cannot run on the ranks of its world."""
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


def _world_fixture(item: pytest.Function) -> str:
    """Return the fixture of ours that a test uses, and that only ranks have; "" if there is none."""
    names = [name for name in ("world", "world_size") if name in item.fixturenames]
    # A plain test may give `world_size` a value.
    return next((name for name in names if fixture_module(item, name) == PLUGIN and name not in _parameters(item)), "")


def _parameters(item: pytest.Function) -> Mapping[str, Any]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec is not None else {}


def _world_size(item: pytest.Function, sizes: tuple[int, ...]) -> int:
    size: int | None = _parameters(item).get("world_size")
    if size in sizes and size is not None:
        return size
    name = marker_name(item.config)
    if size is None and len(sizes) == 1:
        return sizes[0]
    if size is None:
        raise UsageError(
            f"{item.nodeid}: @pytest.mark.{name} on a parameter or from a conftest, with the world sizes {sizes}.\n"
            "Each size makes a case, and the cases of this test exist already.\n"
            "Put the marker on the function, its class or its module; or give it one size, as world_size=2."
        )
    raise UsageError(
        f"{item.nodeid}: @pytest.mark.{name} from a conftest, with world_size = {sizes}.\n"
        f"The test has another marker, and with that one its case has {size} ranks.\n"
        "Set the size in one of the two markers only."
    )
