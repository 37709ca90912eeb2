"""Marks the items of a session that run on ranks, when the collection is complete.

A marker can come late: from a parameter (`pytest.param(1, marks=...)`), or from a hook of a conftest. Such a test has
one world size, because its parameters exist already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from dist_testing.errors import UsageError
from dist_testing.frontends.pytest.collection import check_function, check_item
from dist_testing.frontends.pytest.marked_items import (
    MARKER_KEY,
    PLUGIN,
    SIZE_KEY,
    fixture_module,
    is_marked,
    item_marker,
    two_meanings,
)
from dist_testing.frontends.pytest.marker import Distributed, marker_name

__all__ = ["check_all_marked", "mark_items"]

# Set when `mark_items` has read all markers.
_IS_COMPLETE_KEY = pytest.StashKey[bool]()


def mark_items(
    config: pytest.Config, items: list[pytest.Item], sizes_of: Callable[[str, Distributed], tuple[int, ...]]
) -> None:
    """Mark the items that have the library's marker. Take out those with an error, which pytest then reports.

    Args:
        config: pytest's.
        items: The items of the session; changed in place.
        sizes_of: Returns the world sizes of a marked item, from its node id and its marker.

    Raises:
        pytest.UsageError: If a marker is wrong, is on a method of a unittest class, or has two meanings.
    """
    wrong: dict[pytest.Item, UsageError] = {}
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        marker = item_marker(item)
        if marker is None:
            if fixture_module(item, "world") == PLUGIN:
                wrong[item] = _world_without_marker(item)
            continue
        try:
            check_item(item)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        try:
            check_function(item)
            size = _world_size(item, sizes_of(item.nodeid, marker))
        except UsageError as error:
            wrong[item] = error
        else:
            item.stash[MARKER_KEY], item.stash[SIZE_KEY] = marker, size
    if (clash := two_meanings(config)) is not None:
        raise pytest.UsageError(str(clash))
    config.stash[_IS_COMPLETE_KEY] = True
    if wrong:
        items[:] = [item for item in items if item not in wrong]
    for item, reason in wrong.items():
        report = pytest.CollectReport(item.nodeid, "failed", str(reason), [])
        item.ihook.pytest_collectreport(report=report)


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


def _world_without_marker(item: pytest.Item) -> UsageError:
    return UsageError(
        f"{item.nodeid} uses the fixture `world` without the marker.\n"
        "Only a test that runs on ranks has a world.\n"
        f"Mark it with @pytest.mark.{marker_name(item.config)}."
    )


def _world_size(item: pytest.Function, sizes: tuple[int, ...]) -> int:
    callspec = getattr(item, "callspec", None)
    size: int | None = callspec.params.get("world_size") if callspec is not None else None
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
