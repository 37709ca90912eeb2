"""Finds out which tests run on ranks, and why."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from dist_testing.core.ground.case import RUNS_ON_RANKS
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.isolation import FORK, Isolation
from dist_testing.core.pytest.marker import Distributed, read_marker
from dist_testing.core.pytest.marker_name import MARKER_OPTION, has_mark, marker_name
from dist_testing.core.pytest.options import has_options

# Module of the fixtures `world` and `world_size`.
PLUGIN = f"{__package__}.plugin"
# The marker of an item that runs on ranks, and its world size.
MARKER_KEY = pytest.StashKey[Distributed]()
SIZE_KEY = pytest.StashKey[int]()
# Set by the plugin: whether the session uses the library whatever its tests are, as a Bazel target does.
USES_LIBRARY_KEY = pytest.StashKey[bool]()


def item_marker(item: pytest.Item) -> Distributed | None:
    """Return the library's marker of an item, with its errors as usage errors of pytest; None if it has none."""
    try:
        return read_marker(item) if isinstance(item, pytest.Function) else None
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def check_meaning(item: pytest.Item) -> None:
    """Refuse a marker of the library's name that the project has declared for itself, too.

    Raises:
        pytest.UsageError: If the item has it, and nothing says whose it is: no ini option, no Bazel target and no
            option of the library.
    """
    if has_mark(item) and has_other_meaning(item.config):
        name = marker_name(item.config)
        raise pytest.UsageError(
            f"{item.nodeid}: @pytest.mark.{name} has two possible meanings.\n"
            f"The project declares a marker `{name}`, and the library's has the same name.\n"
            f"Set the library's marker in pytest's ini file: {MARKER_OPTION} = {name} if the two are the same, or "
            f"another name, as {MARKER_OPTION} = ranks."
        )


def is_marked(item: pytest.Item) -> bool:
    """Return whether the item has the library's marker; known at the end of the collection."""
    return MARKER_KEY in item.stash


def world_size(item: pytest.Item) -> int:
    """Return the world size of a marked item."""
    return item.stash[SIZE_KEY]


def forks_of(items: Iterable[pytest.Item], isolation_of: Callable[[pytest.Item], Isolation]) -> int:
    """Return how many ranks the cases of items will fork. A unittest class counts as one: its size is not known yet."""
    forking = (item for item in items if isolation_of(item).forks_each_case)
    return sum(world_size(item) if is_marked(item) else 1 for item in forking)


def check_pools(items: Iterable[pytest.Item], pool_of: Callable[[pytest.Item], str]) -> None:
    """Refuse tests of different world sizes in one worker pool. `pool_of` returns its name; "" for ranks of its own.

    Raises:
        UsageError: If there are such tests.
    """
    sizes: dict[str, int] = {}
    for item in items:
        if pool := pool_of(item):
            size = world_size(item)
            if sizes.setdefault(pool, size) != size:
                raise UsageError(
                    f"{item.nodeid}: world_size = {size}, but the pool of {pool} has {sizes[pool]} ranks.\n"
                    "The tests of a class, or of a module outside classes, share the ranks of one pool.\n"
                    f'Give the test a class of its own, or isolation="{FORK.name}".'
                )


def is_multi_process(item: pytest.Item) -> bool:
    """Return whether the item is a method of a unittest class that runs on ranks."""
    cls = getattr(item, "cls", None)
    return isinstance(cls, type) and getattr(cls, RUNS_ON_RANKS, False)


def has_skip_mark(item: pytest.Item) -> bool:
    """Return whether a mark certainly skips the item; False for a condition that is a text, which pytest evaluates."""
    conditions = [
        (mark.kwargs["condition"],) if "condition" in mark.kwargs else mark.args for mark in item.iter_markers("skipif")
    ]
    is_met = any(condition and not isinstance(condition, str) for given in conditions for condition in given)
    return is_met or item.get_closest_marker("skip") is not None


def is_method_of_unittest(item: pytest.Item) -> bool:
    """Return whether the item is a method of a unittest class."""
    cls = getattr(item, "cls", None)
    return isinstance(cls, type) and issubclass(cls, unittest.TestCase)


def function_of(item: pytest.Item) -> Any:
    """Return the test function of an item, not bound to an instance; None if it has none."""
    # Not `item.obj`: for that pytest makes an instance of a unittest class.
    owner = getattr(item, "cls", None) or getattr(item.getparent(pytest.Module), "obj", None)
    return getattr(owner, getattr(item, "originalname", item.name), None)


def fixture_module(definition: pytest.Function, name: str) -> str | None:
    """Return the module of the fixture `world` or `world_size` that a test or item gets; None if it does not use it.

    A marked test gets `world_size` even if it does not name it.
    """
    internals: Any = definition
    info = internals._fixtureinfo
    known = info.name2fixturedefs.get(name) if name in info.names_closure else None
    if name == "world_size" and known is None:
        known = internals.session._fixturemanager.getfixturedefs(name, definition)
    return known[-1].func.__module__ if known else None


def has_other_meaning(config: pytest.Config) -> bool:
    """Return whether the marker's name may be the project's: it declares it, and nothing says that it is ours."""
    if config.getini(MARKER_OPTION) or config.stash.get(USES_LIBRARY_KEY, False) or has_options(config):
        return False
    name = marker_name(config)
    declared = [line for line in config.getini("markers") if line.partition(":")[0].partition("(")[0].strip() == name]
    # One of them is the library's.
    return len(declared) > 1
