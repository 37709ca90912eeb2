"""The pytest plugin: declares the marker, the fixtures and the options. `in_runner` runs a marked test."""

from __future__ import annotations

import pytest

from dist_testing.errors import DistTestingError, UsageError
from dist_testing.frontends.pytest import backend_hook
from dist_testing.frontends.pytest.collection import parametrize_world_size
from dist_testing.frontends.pytest.in_runner import (
    BUDGET_KEY,
    OUTPUTS_KEY,
    PAUSE_LIMIT_KEY,
    SPEC_KEY,
    RunnerPlugin,
)
from dist_testing.frontends.pytest.marker import MARKER_HELP
from dist_testing.frontends.pytest.on_rank import current_world
from dist_testing.frontends.pytest.options import add_options
from dist_testing.frontends.pytest.session_events import EVENTS_KEY
from dist_testing.world import World

__all__ = ["BUDGET_KEY", "EVENTS_KEY", "OUTPUTS_KEY", "PAUSE_LIMIT_KEY", "SPEC_KEY", "runner_plugin"]

_RUNNER = "dist_testing_runner"


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook that a repository implements."""
    pluginmanager.add_hookspecs(backend_hook)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the `--dist-*` options. Under Bazel the target's spec has these values, and an option overrides them."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the runner's half of the plugin."""
    config.addinivalue_line("markers", MARKER_HELP)
    try:
        runner = RunnerPlugin(config)
    except DistTestingError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(runner, _RUNNER)


def runner_plugin(config: pytest.Config) -> RunnerPlugin:
    """Return the runner's half of the plugin; call it only after `pytest_configure`."""
    runner: RunnerPlugin | None = config.pluginmanager.get_plugin(_RUNNER)
    assert runner is not None
    return runner


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one case per world size."""
    try:
        parametrize_world_size(metafunc, __name__, runner_plugin(metafunc.config).world_sizes)
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from error


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """Return the number of ranks in this case's world."""
    size: int = request.param
    return size


@pytest.fixture
def world() -> World:
    """Return this rank's view of its world, a `dist_testing.World`."""
    world = current_world()
    if world is None:
        raise UsageError(
            "A test that runs in the runner uses the fixture `world`.\n"
            "Only ranks have a world, and request.getfixturevalue does not start ranks.\n"
            "Mark the test with @pytest.mark.distributed."
        )
    return world
