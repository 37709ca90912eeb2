"""The pytest door: marker, `world` fixture and options; what runs a marked test is in `pytest_runner`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pytest

from dist_testing.doors import backend_hook
from dist_testing.doors.collection import parametrize_world_size
from dist_testing.doors.marker import MARKER_HELP
from dist_testing.doors.options import add_options
from dist_testing.doors.pytest_runner import BUDGET_KEY, FRESH_KEY, OUTPUTS_KEY, SPEC_KEY, WATCH_KEY, Runner
from dist_testing.doors.rank_pytest import current_world
from dist_testing.errors import DistTestingError, UsageError
from dist_testing.rank.bootstrap import RankSide
from dist_testing.spec import read_spec
from dist_testing.world import World

__all__ = ["BUDGET_KEY", "OUTPUTS_KEY", "SPEC_KEY", "WATCH_KEY", "FreshSession", "current_runner"]

_RUNNER = "dist_testing_runner"


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook that a repository implements."""
    pluginmanager.add_hookspecs(backend_hook)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The `--dist-*` options. Under Bazel the target's spec says these things, and an option overrides it."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the runner's half of the plugin."""
    config.addinivalue_line("markers", MARKER_HELP)
    try:
        runner = Runner(config)
    except DistTestingError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(runner, _RUNNER)


def current_runner(config: pytest.Config) -> Runner:
    """The runner's half, once the plugin is configured."""
    runner: Runner | None = config.pluginmanager.get_plugin(_RUNNER)
    assert runner is not None
    return runner


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one case per world size."""
    try:
        parametrize_world_size(metafunc, __name__, current_runner(metafunc.config).world_sizes)
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from error


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """Ranks in the world of this case."""
    size: int = request.param
    return size


@pytest.fixture
def world() -> World:
    """This rank's view of the world (`dist_testing.World`)."""
    world = current_world()
    if world is None:
        raise UsageError(
            "The fixture `world` was asked for in a test that runs in the runner.\n"
            "Only ranks have a world, and request.getfixturevalue does not make any.\n"
            "Mark the test with @pytest.mark.distributed."
        )
    return world


class FreshSession:
    """A pytest plugin for fresh interpreters: collects as the runner did, and then does not run the tests."""

    def __init__(self, loader: Mapping[str, Any], then: Callable[[RankSide], NoReturn], nodeid: str | None) -> None:
        """Make the plugin.

        Args:
            loader: What the runner's session was given.
            then: What the interpreter is to be, once it has the tests.
            nodeid: The test that it is for; None if that is known later.
        """
        self._loader = loader
        self._then = then
        self._nodeid = nodeid
        self.errors: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Leave the file of `--log-file` to the session, which has it open."""
        config.option.log_file = os.devnull

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what went wrong: it is all that will be known of this interpreter."""
        if report.failed:
            self.errors.append(str(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run no tests, also with `--continue-on-collection-errors`.

        It is called only if a file could not be collected: that fails its own tests, and no others.
        """
        side = current_runner(session.config).side
        if side.has_tests and self._nodeid in (None, *(item.nodeid for item in session.items)):
            side.collection_errors += self.errors
            self._then(side)
        return True

    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Hand on what the runner's session was given, before any plugin is configured."""
        early_config.stash[FRESH_KEY] = self._then
        if self._loader["spec"] is not None:
            early_config.stash[SPEC_KEY] = read_spec(self._loader["spec"], self._loader["promised_gpus"])
