"""Finds out which tests run on ranks, and why: a project may have another marker of the library's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.isolation import FORK, Isolation
from dist_testing.core.pytest.marker import Distributed, argument_names, read_marker
from dist_testing.core.pytest.marker_name import MARKER_OPTION, marker_name
from dist_testing.core.pytest.options import has_options
from dist_testing.core.unittest.world_case import WorldCase

# Module of the fixtures `world` and `world_size`.
PLUGIN = f"{__package__}.plugin"
# The marker of an item that runs on ranks, and its world size.
MARKER_KEY = pytest.StashKey[Distributed]()
SIZE_KEY = pytest.StashKey[int]()
# Set by the plugin: whether the session uses the library whatever its tests are, as a Bazel target does.
USES_LIBRARY_KEY = pytest.StashKey[bool]()


@dataclass(slots=True)
class _OwnMarks:
    """The tests whose marker has no arguments, in a session whose project declares a marker of this name.

    Attributes:
        theirs: Node id of the first test that is taken for the project's own; "" if there is none.
        ours: Node id of a test that certainly uses the library; "" if there is none.
    """

    theirs: str = ""
    ours: str = ""


_OWN_MARKS_KEY = pytest.StashKey[_OwnMarks]()


def library_marker(definition: pytest.Function) -> Distributed | None:
    """Return the library's marker of a test function or an item; None if it has none.

    If the project declares a marker of the same name, and nothing says that the session uses the library, a test has
    the library's marker only if it has arguments of the library, or if the test uses the fixture `world`.

    Raises:
        UsageError: If an argument is unknown or its value is impossible.
    """
    config = definition.config
    marks = list(definition.iter_markers(marker_name(config)))
    if not marks:
        return None
    if _has_other_meaning(config):
        own_marks = config.stash.setdefault(_OWN_MARKS_KEY, _OwnMarks())
        if _is_ours(definition, marks):
            own_marks.ours = definition.nodeid
        else:
            if not any(mark.args or mark.kwargs for mark in marks):
                own_marks.theirs = own_marks.theirs or definition.nodeid
            return None
    return read_marker(definition)


def item_marker(item: pytest.Item) -> Distributed | None:
    """Return the library's marker of an item as a usage error of pytest would have it; None if it has none."""
    try:
        return library_marker(item) if isinstance(item, pytest.Function) else None
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def check_one_meaning(config: pytest.Config) -> None:
    """Refuse a session in which a marker without arguments can be the library's or the project's.

    Raises:
        pytest.UsageError: If it is such a session.
    """
    own_marks = config.stash.get(_OWN_MARKS_KEY, _OwnMarks())
    if own_marks.ours and own_marks.theirs:
        name = marker_name(config)
        raise pytest.UsageError(
            f"{own_marks.theirs}: @pytest.mark.{name} has two possible meanings.\n"
            f"The project declares a marker `{name}`, but {own_marks.ours} uses the library's.\n"
            f"Set the library's marker in pytest's ini file: {MARKER_OPTION} = {name} if the two are the same, or "
            f"another name, as {MARKER_OPTION} = ranks."
        )


def describe_own_marks(config: pytest.Config) -> str:
    """Return a line about tests that are taken for the project's own; "" if there are none."""
    if not config.stash.get(_OWN_MARKS_KEY, _OwnMarks()).theirs:
        return ""
    name = marker_name(config)
    return (
        f"dist_testing: the project declares the marker `{name}`, so tests with it do not run on ranks; "
        f"the ini option {MARKER_OPTION} = {name} runs them on ranks"
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
    return isinstance(cls, type) and issubclass(cls, WorldCase)


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


def _has_other_meaning(config: pytest.Config) -> bool:
    """Return whether the marker's name may be the project's: it declares it, and nothing says that it is ours."""
    if config.getini(MARKER_OPTION) or config.stash.get(USES_LIBRARY_KEY, False) or has_options(config):
        return False
    name = marker_name(config)
    declared = [line for line in config.getini("markers") if line.partition(":")[0].partition("(")[0].strip() == name]
    # One of them is the library's.
    return len(declared) > 1


def _is_ours(definition: pytest.Function, marks: Sequence[pytest.Mark]) -> bool:
    has_our_arguments = any(
        mark.kwargs and not mark.args and mark.kwargs.keys() <= set(argument_names()) for mark in marks
    )
    return has_our_arguments or fixture_module(definition, "world") == PLUGIN
