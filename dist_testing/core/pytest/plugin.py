"""The pytest plugin: declares the marker, the fixtures and the options. `in_runner` runs a marked test.

pytest loads it in every session of an environment that has the library, so it imports little before the session has a
distributed test: the library's other modules take ten times as long to import.

Exit status: 0 if no test failed; 1 if a test failed; 2 if the run was interrupted, or a test file could not be
collected; 3 after an internal error of pytest; 4 if the command line or the configuration is wrong; 5 if no test was
collected; 128 + N if signal N ended --dist-watch.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from dist_testing.core.engine.interrupts import raising_interrupt_again
from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.pytest.options import (
    KEEPS_OPTION,
    WATCH_OPTION,
    add_marks,
    add_options,
    has_mark,
    has_options,
    marker_name,
    with_plugin,
)
from dist_testing.core.session.offered_session import offer_session, withdraw_session

if TYPE_CHECKING:
    from dist_testing.core.ground.world import World
    from dist_testing.core.pytest.in_runner import RunnerPlugin
    from dist_testing.core.pytest.option_values import Declaration

_RUNNER = "dist_testing_runner"
# Ends of the names of variables that launchers set in the processes that they start.
LAUNCHER_VARIABLES = ("RANK", "PROCID")
# Options of pytest and of plug-ins for files that one process of a session writes, to their values for all others.
_FILES = {"xmlpath": None, "log_file": os.devnull, "htmlpath": None, "json_report": False, "report_log": None}


class _Hooks:
    @staticmethod
    @pytest.hookspec
    def pytest_dist_backends() -> Declaration | list[Declaration]:  # type: ignore[empty-body]
        """Declare backends for the distributed tests of this run.

        A conftest.py or the pytest plugin of an installed package implements it. pytest asks only the conftest.py files
        that it loads before it collects: those in the folders of the command line's arguments, and in the folders
        above. Under Bazel the spec of the target replaces the hook.

        Returns:
            The path of a .bzl file that calls `declare_backend`, a `core.ground.backends.Backend`, or a list of these.
        """


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook that a repository implements."""
    pluginmanager.add_hookspecs(_Hooks)


# Under Bazel the target's spec has the values of these options, and an option overrides them.
pytest_addoption = add_options


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """With `--dist-watch`, be the watch mode; its forks go on from here. Else see `pytest_collection`."""
    if not getattr(early_config.known_args_namespace, "dist_watch", False):
        with raising_interrupt_again():
            return (yield)
    watch = add_on_named("watch", WATCH_OPTION)
    return (yield from watch.load("around_conftests")(early_config))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Leave the files to rank 0 of a launcher's world, before the plug-ins that write them are configured."""
    if not _has_launcher():
        return
    from dist_testing.core.pytest.marked_items import SPEC_KEY
    from dist_testing.core.session.existing_world import existing_rank

    # The runner's half reports wrong variables. Under Bazel they do not count.
    with contextlib.suppress(DistTestingError):
        found = None if SPEC_KEY in config.stash else existing_rank()
        if found is not None and found[1].rank:
            vars(config.option).update({name: value for name, value in _FILES.items() if hasattr(config.option, name)})


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, and the runner's half of the plugin if the session certainly uses the library."""
    try:
        add_marks(config)
        if config.getoption("dist_watch"):
            add_on_named("watch", WATCH_OPTION).load("at_configure")(config)
    except DistTestingError as error:
        raise pytest.UsageError(str(error)) from error
    if _is_in_use() or _is_set_up(config):
        runner_plugin(config)
    else:
        offer_session(config, lambda: runner_plugin(config))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Withdraw the offer of a session: the process may go on without pytest."""
    withdraw_session(config)


def runner_plugin(config: pytest.Config) -> RunnerPlugin:
    """Return the runner's half of the plugin. The first call makes and registers it."""
    runner: RunnerPlugin | None = config.pluginmanager.get_plugin(_RUNNER)
    if runner is None:
        from dist_testing.core.pytest.in_runner import RunnerPlugin

        try:
            runner = RunnerPlugin(config)
        except DistTestingError as error:
            raise pytest.UsageError(str(error)) from error
        config.pluginmanager.register(runner, _RUNNER)
        withdraw_session(config)
    return runner


def _is_in_use() -> bool:
    """Return whether this process has imported the engine: a test, a conftest or Bazel's main uses the library."""
    return "dist_testing.core.engine.engine" in sys.modules


def _is_set_up(config: pytest.Config) -> bool:
    """Return whether the command line, the ini file, a conftest or a launcher says something to the library.

    What they say is then checked at once, also in a session without distributed tests.
    """
    return bool(
        has_options(config)
        or with_plugin(config)
        or config.getini(KEEPS_OPTION)
        or config.hook.pytest_dist_backends.get_hookimpls()
        # The reports of pytest-xdist's workers come to this process.
        or getattr(config.option, "dist", "no") != "no"
        or _has_launcher()
    )


def _has_launcher() -> bool:
    return any(name.endswith(LAUNCHER_VARIABLES) for name in os.environ)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one case per world size."""
    if not has_mark(metafunc.definition):
        # The marker may come later: from a parameter, or from a conftest.
        return
    try:
        runner_plugin(metafunc.config).parametrize(metafunc)
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from error


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """End the session by Ctrl-C also while a test file imports torch, or the library for the ranks."""
    with raising_interrupt_again():
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Find the tests that run on ranks; a conftest may have marked some just now."""
    yield
    if _is_in_use() or any(map(has_mark, items)):
        runner_plugin(config).read_markers(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that has got the marker after the collection."""
    _refuse_late_marker(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test that has got the marker in its setup."""
    _refuse_late_marker(item)


def _refuse_late_marker(item: pytest.Item) -> None:
    """Fail a test that has the marker and is no case: it would run without ranks, and pass for no reason."""
    if not isinstance(item, pytest.Function) or not has_mark(item):
        return
    from dist_testing.core.pytest.marked_items import is_marked

    if not is_marked(item):
        pytest.fail(
            f"{item.nodeid}: @pytest.mark.{marker_name(item.config)} was added after the markers had been read.\n"
            "The last part of pytest_collection_modifyitems reads them, so a wrapper of that hook, or a later hook, is "
            "too late.\n"
            "Add the marker in pytest_collection_modifyitems, without wrapper=True.",
            pytrace=False,
        )


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """Return the number of ranks in this case's world."""
    # A plain test may give a value. A marker that comes after the parametrization has set none.
    size: int = request.param if hasattr(request, "param") else _world_of_rank(request).size
    return size


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """Return this rank's view of its world, a `dist_testing.World`."""
    return _world_of_rank(request)


def _world_of_rank(request: pytest.FixtureRequest) -> World:
    from dist_testing.core.pytest.pytest_rank import current_world

    world = current_world()
    if world is None:
        pytest.fail(
            f"{request.node.nodeid} uses the fixture `{request.fixturename}` without the marker.\n"
            "Only a test that runs on ranks has a world, and request.getfixturevalue does not start ranks.\n"
            f"Mark it with @pytest.mark.{marker_name(request.config)}.",
            pytrace=False,
        )
    return world
