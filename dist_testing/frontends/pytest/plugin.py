"""The pytest plugin: declares the marker, the fixtures and the options. `in_runner` runs a marked test."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from dist_testing.errors import DistTestingError, UsageError
from dist_testing.frontends.pytest import backend_hook
from dist_testing.frontends.pytest.in_runner import SPEC_KEY, RunnerPlugin
from dist_testing.frontends.pytest.marked_items import USES_LIBRARY_KEY, describe_own_marks
from dist_testing.frontends.pytest.marker import MARKER_HELP, marker_name
from dist_testing.frontends.pytest.marking import parametrize_world_size
from dist_testing.frontends.pytest.on_rank import current_world
from dist_testing.frontends.pytest.options import add_options
from dist_testing.frontends.pytest.watch import check_taken_over, watched_session
from dist_testing.world import World

_RUNNER = "dist_testing_runner"


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook that a repository implements."""
    pluginmanager.add_hookspecs(backend_hook)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the `--dist-*` options. Under Bazel the target's spec has these values, and an option overrides them."""
    add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """With `--dist-watch`, be the watch mode; its forks go on from here."""
    return (yield from watched_session(early_config))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the runner's half of the plugin."""
    config.stash[USES_LIBRARY_KEY] = SPEC_KEY in config.stash
    try:
        check_taken_over(config)
        config.addinivalue_line("markers", f"{marker_name(config)}{MARKER_HELP}")
        runner = RunnerPlugin(config)
    except DistTestingError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(runner, _RUNNER)


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    """Say so if a marker with the name of the library's is taken for another one."""
    return describe_own_marks(config)


def runner_plugin(config: pytest.Config) -> RunnerPlugin:
    """Return the runner's half of the plugin; call it only after `pytest_configure`."""
    runner: RunnerPlugin | None = config.pluginmanager.get_plugin(_RUNNER)
    assert runner is not None
    return runner


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one case per world size."""
    try:
        parametrize_world_size(metafunc, runner_plugin(metafunc.config).world_sizes)
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from error


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
    world = current_world()
    if world is None:
        raise UsageError(
            f"A test that runs in the runner uses the fixture `{request.fixturename}`.\n"
            "Only ranks have a world, and request.getfixturevalue does not start ranks.\n"
            f"Mark the test with @pytest.mark.{marker_name(request.config)}."
        )
    return world
