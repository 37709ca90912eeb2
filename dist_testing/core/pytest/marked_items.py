"""Finds out which items of a session run on ranks, and refuses those that cannot before a rank is started.

A plug-in of a session may bring other things to run on ranks in place of tests, such as a script. Then it sets
`CASE_KEY` in the stash of each item, and `RANK_SIDE_KEY` in that of the config. An item calls `RUN_KEY`, and has a
method `command` that returns the command that repeats a result outside Bazel.

A marker can come late: from a parameter (`pytest.param(1, marks=...)`), or from a hook of a conftest. Such a test has
one world size, because its parameters exist already.
"""

from __future__ import annotations

import functools
import os
import re
import unittest
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.ground.case import RUNS_ON_RANKS, Case
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK, Isolation, isolation_named, isolation_names
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.pytest.marker import Distributed, read_marker
from dist_testing.core.pytest.options import MARKER_OPTION, has_options, marker_name, register_plugin
from dist_testing.core.rank.bootstrap import RankContext

# The case of a marked item.
CASE_KEY = pytest.StashKey[Case]()
# The spec of the target, under Bazel: the Bazel main sets it before pytest starts.
SPEC_KEY = pytest.StashKey[Spec]()
# What the target or the command line asks for.
RUN_SPEC_KEY = pytest.StashKey[Spec]()
# Set by a plug-in whose items need no pytest on the ranks: the rank context of the session, and its loader.
RANK_SIDE_KEY = pytest.StashKey[tuple[RankContext, Loader]]()
# Runs an item on ranks, and raises what pytest is to report.
RUN_KEY = pytest.StashKey[Callable[[pytest.Item], None]]()
# The functions of the library that start ranks. `run` alone is a word of every other file.
_STARTERS = re.compile(
    r"spawn_threads_and_init_comms|start_processes|\bdist_testing\.run\(|^\s*from dist_testing import .*\brun\b",
    re.MULTILINE,
)


def is_marked(item: pytest.Item) -> bool:
    """Return whether the item has the library's marker; known at the end of the collection."""
    return CASE_KEY in item.stash


def rank_name(item: pytest.Item | pytest.Collector) -> str:
    """Return the name by which ranks find an item: two files outside of the root folder can share a node id."""
    return name_from(item, item.config.rootpath)


def name_from(item: pytest.Item | pytest.Collector, folder: Path) -> str:
    """Return the name of an item as an argument of pytest that is started in a folder."""
    return "::".join([os.path.relpath(item.path, folder), *item.nodeid.split("::")[1:]])


def check_parameters(definition: pytest.Function) -> None:
    """Refuse a marked function that sets the size of its world by a parameter."""
    for mark in definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        if "world_size" in ([part.strip() for part in names.split(",")] if isinstance(names, str) else names):
            raise UsageError(
                f"{definition.nodeid}: parametrize sets `world_size`.\n"
                "This is the size of the test's world, and only the marker sets it.\n"
                f"List the sizes there: @pytest.mark.{marker_name(definition.config)}(world_size=[2, 4])."
            )


def checked_marker(item: pytest.Function) -> Distributed:
    """Return the library's marker of an item that has one. Raise UsageError if it is no marker of a test on ranks."""
    name = marker_name(item.config)
    if has_other_meaning(item.config):
        raise UsageError(
            f"{item.nodeid}: @pytest.mark.{name} has two possible meanings.\n"
            f"The project declares a marker `{name}`, and the library's has the same name.\n"
            f"Set the library's marker in pytest's ini file: {MARKER_OPTION} = {name} if the two are the same, or "
            f"another name, as {MARKER_OPTION} = ranks."
        )
    marker = read_marker(item)
    assert marker is not None
    if is_method_of_unittest(item):
        way_out = (
            "Take the marker off, also from the module: attributes of the class, such as world_size, say the same."
            if is_multi_process(item)
            else "Derive the class from dist_testing.MultiProcessTestCase, or make it a class without a base."
        )
        raise UsageError(
            f"{item.nodeid}: @pytest.mark.{name} on a method of a unittest class.\n"
            "The marker is for functions and for classes that pytest runs; unittest has its own way to run a method.\n"
            f"{way_out}"
        )
    return marker


def register_plugins(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Register the plugin of each add-on that a test on ranks asks for by a setting, if the add-on has one."""
    names = {name for item in items if is_marked(item) for name in item.stash[CASE_KEY].settings}
    classes = {getattr(item, "cls", None) for item in items if is_multi_process(item)}
    for add_on in add_ons():
        if add_on.pytest_plugin and (add_on.name in names or any(hasattr(cls, add_on.name) for cls in classes)):
            register_plugin(config, add_on)


def has_other_meaning(config: pytest.Config) -> bool:
    """Return whether the marker's name may be the project's: it declares it, and nothing says that it is ours."""
    if config.getini(MARKER_OPTION) or SPEC_KEY in config.stash or has_options(config):
        return False
    name = marker_name(config)
    declared = [line for line in config.getini("markers") if line.partition(":")[0].partition("(")[0].strip() == name]
    # One of them is the library's.
    return len(declared) > 1


def size_of_case(item: pytest.Function, sizes: tuple[int, ...]) -> int:
    """Return the world size of an item, which its parameters set if the marker has several."""
    callspec = getattr(item, "callspec", None)
    size: int | None = None if callspec is None else callspec.params.get("world_size")
    if size is None and len(sizes) == 1:
        return sizes[0]
    if size is not None and size in sizes:
        return size
    is_made = f"this case has {size} ranks already" if size else "this case was made without a size"
    raise UsageError(
        f"{item.nodeid}: @pytest.mark.{marker_name(item.config)} on a parameter or from a conftest, with world_size = "
        f"{sizes}.\n"
        f"Each size makes a case, but {is_made}.\n"
        "Put the marker on the function, its class or its module; or set one size, in one marker, as world_size=2."
    )


def isolation_of(item: pytest.Item) -> Isolation:
    """Return how the ranks of the item are made: by its marker or its class, else by the target."""
    cls = getattr(item, "cls", None)
    own: object = item.stash[CASE_KEY].isolation if is_marked(item) else getattr(cls, "isolation", "")
    # A class with a wrong attribute reports it when its test runs.
    return isolation_named(str(own) if own in isolation_names() else item.config.stash[RUN_SPEC_KEY].isolation)


def check_pools(cases: Iterable[Case]) -> None:
    """Refuse tests of different world sizes in one worker pool."""
    sizes: dict[str, int] = {}
    for case in cases:
        if case.pool and sizes.setdefault(case.pool, case.world_size) != case.world_size:
            raise UsageError(
                f"{case.name}: world_size = {case.world_size}, but the pool of {case.pool} has {sizes[case.pool]} "
                "ranks.\n"
                "The tests of a class, or of a module outside classes, share the ranks of one pool.\n"
                f'Give the test a class of its own, or isolation="{FORK.name}".'
            )


def is_multi_process(item: pytest.Item) -> bool:
    """Return whether the item is a method of a unittest class that runs on ranks."""
    cls = getattr(item, "cls", None)
    return isinstance(cls, type) and getattr(cls, RUNS_ON_RANKS, False)


def is_method_of_unittest(item: pytest.Item) -> bool:
    """Return whether the item is a method of a unittest class."""
    cls = getattr(item, "cls", None)
    return isinstance(cls, type) and issubclass(cls, unittest.TestCase)


def function_of(item: pytest.Item) -> Any:
    """Return the test function of an item, not bound to an instance; None if it has none."""
    # Not `item.obj`: for that pytest makes an instance of a unittest class.
    owner = getattr(item, "cls", None) or getattr(item.getparent(pytest.Module), "obj", None)
    return getattr(owner, getattr(item, "originalname", item.name), None)


def starts_ranks(function: object, file: Path) -> bool:
    """Return whether a plain test may start ranks: it says so by `starts_ranks`, or its file names such a function."""
    # A test can also decorate functions while it runs. Only the text of the file shows that before.
    return bool(getattr(function, "starts_ranks", False)) or _names_starter(file)


@functools.lru_cache
def _names_starter(file: Path) -> bool:
    return file.is_file() and _STARTERS.search(file.read_text(encoding="utf-8", errors="replace")) is not None
