"""The pytest door: marker, `world` fixture, options, and the protocol that sends a marked test to the ranks.

Everything that pytest decides about a test (collection, selection, skip marks, expected failures, reporting) stays in
the runner; the test itself, with its fixtures, runs on the ranks (`rank_pytest`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dist_testing.budget import Budget
from dist_testing.doors import reports
from dist_testing.doors.marker import MARKER_HELP, Distributed, read_marker
from dist_testing.doors.options import add_options, read_options
from dist_testing.doors.rank_pytest import EXPECTED, PytestSide, current_world
from dist_testing.doors.session import Session, open_session
from dist_testing.doors.unittest_case import MultiProcessTestCase
from dist_testing.errors import DistTestingError, LaunchError, UsageError
from dist_testing.outcomes import Status
from dist_testing.rank.bootstrap import RankSide
from dist_testing.runner.case import Case
from dist_testing.runner.engine import Engine
from dist_testing.runner.interrupts import raise_on_termination
from dist_testing.runner.needs import missing_need
from dist_testing.runner.outputs import keep_logs
from dist_testing.spec import Spec, load_spec
from dist_testing.world import World

# Set by the Bazel main before pytest starts; outside Bazel the options take their place.
SPEC_KEY = pytest.StashKey[Spec]()
BUDGET_KEY = pytest.StashKey[Budget]()
OUTPUTS_KEY = pytest.StashKey[Path | None]()
_FRESH_KEY = pytest.StashKey[Callable[[RankSide], NoReturn]]()
_MARKER_KEY = pytest.StashKey[Distributed]()
_PLUGIN = "dist_testing_runner"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The `--dist-*` options. Under Bazel the target's spec says these things, and an option overrides it."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the runner's half of the plugin."""
    config.addinivalue_line("markers", MARKER_HELP)
    try:
        runner = _Runner(config)
    except DistTestingError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(runner, _PLUGIN)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one case per world size."""
    runner: _Runner | None = metafunc.config.pluginmanager.get_plugin(_PLUGIN)
    try:
        marker = read_marker(metafunc.definition)
        if marker is None:
            if "world" in metafunc.fixturenames:
                raise UsageError(
                    f"{metafunc.definition.nodeid} asks for `world` and is not marked.\n"
                    "Only a test that runs on ranks has a world.\n"
                    "Mark it with @pytest.mark.distributed."
                )
            return
        assert runner is not None
        sizes = runner.world_sizes(metafunc.definition.nodeid, marker)
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from error
    if "world_size" not in metafunc.fixturenames:
        metafunc.fixturenames.append("world_size")
    if len(sizes) > 1:
        metafunc.parametrize("world_size", sizes, indirect=True, ids=[f"world_size={size}" for size in sizes])
    else:
        metafunc.parametrize("world_size", sizes, indirect=True, ids=[pytest.HIDDEN_PARAM])


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
        # Reached through another fixture, in a test that runs in the runner.
        raise UsageError("`world` exists on ranks only: mark the test with @pytest.mark.distributed.")
    return world


class FreshSession:
    """A pytest plugin for fresh interpreters: collects as the runner did, and then does not run the tests."""

    def __init__(self, loader: Mapping[str, Any], then: Callable[[RankSide], NoReturn]) -> None:
        self._loader = loader
        self._then = then
        self.errors: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what went wrong: it is all that will be known of this interpreter."""
        if report.failed:
            self.errors.append(str(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        """Run no tests, also with `--continue-on-collection-errors`."""
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Hand on what the runner's session was given."""
        config.stash[_FRESH_KEY] = self._then
        if self._loader["spec"] is not None:
            config.stash[SPEC_KEY] = load_spec(Path(self._loader["spec"]))


class _Runner:
    """The runner's half: owns the engine of the session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        options = read_options(config, config.stash.get(SPEC_KEY, None))
        self._spec = options.spec
        self._timeout_s = options.timeout_s
        self._fail_on_missing = options.fail_on_missing
        self._outputs = config.stash.get(OUTPUTS_KEY, None)
        self._items: dict[str, pytest.Item] = {}
        self._side = PytestSide(config, self._items)
        self._cases_after: dict[str, int] = {}
        self._failures: list[str] = []
        loader = {
            "door": "pytest",
            "arguments": [
                *(str(argument) for argument in config.invocation_params.args),
                # A worker of pytest-xdist is told what its controller was told; it must not become one.
                *(("-n", "0") if config.pluginmanager.hasplugin("xdist") else ()),
            ],
            "directory": str(config.invocation_params.dir),
            "spec": str(self._spec.file) if self._spec.file else None,
        }
        self._engine = Engine(self._spec, config.stash.get(BUDGET_KEY, Budget()), self._side, loader)
        self._session = Session(self._engine, self._timeout_s, self._fail_on_missing)
        open_session(self._session)

    def world_sizes(self, nodeid: str, marker: Distributed) -> tuple[int, ...]:
        """The worlds that a marked test runs on."""
        for size in marker.world_size:
            self._session.check_declared(nodeid, size)
        return marker.world_size or self._spec.world_sizes

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests that are for other backends."""
        other: list[pytest.Item] = []
        for item in items:
            if isinstance(item, pytest.Function) and (marker := read_marker(item)) is not None:
                item.stash[_MARKER_KEY] = marker
                if marker.backends and self._spec.backend.name not in marker.backends:
                    other.append(item)
        if other:
            items[:] = [item for item in items if item not in other]
            self._config.hook.pytest_deselected(items=other)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Fork the template: the tests are imported, and nothing of them has run."""
        ours = [item for item in session.items if _MARKER_KEY in item.stash or _is_multi_process(item)]
        self._items.update({item.nodeid: item for item in ours})
        if (then := self._config.stash.get(_FRESH_KEY, None)) is not None:
            if not session.testsfailed:
                then(self._side)
            return
        if not ours or self._config.option.collectonly:
            return
        self._check_pools()
        raise_on_termination()
        self._cases_after = dict(zip(self._items, itertools.count(len(ours) - 1, -1), strict=False))
        try:
            launcher, _ = self._engine.prepare()
        except LaunchError as error:
            raise pytest.UsageError(str(error)) from error
        if reasons := launcher.unclean_reasons:
            self._config.get_terminal_writer().line(
                f"dist_testing: ranks are forked from a fresh interpreter and not from this one: {'; '.join(reasons)}"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a marked test on the ranks instead of here."""
        self._engine.cases_after = self._cases_after.get(item.nodeid, 0)
        if _MARKER_KEY not in item.stash:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, item.stash[_MARKER_KEY]):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if nextitem is None or self._pool_of(nextitem) != self._pool_of(item):
            self._end_pool(item)
        # Nothing of this item was set up here, but an earlier one's module may be waiting for its teardown.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def _reports(self, item: pytest.Item, marker: Distributed) -> list[pytest.TestReport]:
        if reason := reports.skip_mark(item):
            return reports.skipped(item, reason)
        expected = reports.xfail_mark(item)
        if expected is not None and not expected.run:
            return reports.expected_failure(item, f"[NOTRUN] {expected.reason}", 0.0)
        size = _world_size(item)
        if missing := missing_need(self._spec, size):
            if self._fail_on_missing or self._spec.promises(size):
                return reports.failed(item, reports.broken_promise(item.nodeid, self._spec, missing), 0.0)
            return reports.skipped(item, missing)
        case = Case(
            name=item.nodeid,
            world_size=size,
            body={"door": "pytest", "nodeid": item.nodeid},
            timeout_s=marker.timeout or self._timeout_s,
            isolation=marker.isolation or self._spec.isolation,
            pool=self._pool_of(item),
            init=marker.init,
            expected_exits=marker.expected_exits,
        )
        try:
            result = self._engine.run(case)
        except (LaunchError, UsageError) as error:
            return reports.launch_failed(item, error)
        properties = reports.properties(result)
        if expected is not None and result.verdict.status is not Status.SKIPPED:
            return reports.judge_expected(item, expected, result, self._spec)
        match result.verdict.status:
            case Status.PASSED:
                return reports.passed(item, result.duration_s, properties)
            case Status.SKIPPED if result.verdict.reason.startswith(EXPECTED):
                return reports.expected_failure(item, result.verdict.reason.removeprefix(EXPECTED), result.duration_s)
            case Status.SKIPPED:
                return reports.skipped(item, result.verdict.reason, result.duration_s, properties)
            case Status.FAILED:
                if self._outputs is not None:
                    keep_logs(result, self._outputs)
                text = reports.failure_text(item.nodeid, result, self._spec)
                return reports.failed(item, text, result.duration_s, properties)

    def _pool_of(self, item: pytest.Item) -> str:
        """The pool whose ranks run the item: its class's, or its module's; "" for ranks of its own."""
        marker = item.stash.get(_MARKER_KEY, None)
        if marker is None or (marker.isolation or self._spec.isolation) != "pool":
            return ""
        assert item.parent is not None
        return item.parent.nodeid if marker.init else f"{item.parent.nodeid} without a group"

    def _check_pools(self) -> None:
        sizes: dict[str, int] = {}
        for item in self._items.values():
            if pool := self._pool_of(item):
                size = _world_size(item)
                if sizes.setdefault(pool, size) != size:
                    raise pytest.UsageError(
                        f"{item.nodeid}: world_size = {size}, but the pool of {pool} has {sizes[pool]} ranks.\n"
                        "The tests of a class, or of a module outside classes, share the ranks of one pool.\n"
                        'Give the test a class of its own, or isolation="fork".'
                    )

    def _end_pool(self, item: pytest.Item) -> None:
        try:
            trouble = self._engine.end_pool()
        except LaunchError as error:
            trouble = str(error)
        if trouble:
            item.ihook.pytest_runtest_logreport(report=reports.failed_teardown(item, f"{item.nodeid}: {trouble}"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Give the report of a unittest case what the ranks had to say."""
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, DistTestingError):
            # Written for the user; a traceback of this library would only stand before it.
            report.longrepr = str(call.excinfo.value)
        if _is_multi_process(item) and call.when == "call":
            reports.add_result(report, call.excinfo, self._spec, self._outputs)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what is to be printed last."""
        if (text := getattr(report, "dist_failure", None)) is not None:
            self._failures.append(text)
            reports.point_to_end(report, text)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Leave nothing behind, then print the failures, so that they are the last thing in the log."""
        self._engine.close()
        if self._failures and not hasattr(config, "workerinput"):
            writer = config.get_terminal_writer()
            for text in self._failures:
                writer.line()
                writer.sep("=", "distributed failure")
                writer.line(text)


def _world_size(item: pytest.Item) -> int:
    size: int = item.callspec.params["world_size"]  # type: ignore[attr-defined]  # pytest_generate_tests sets it
    return size


def _is_multi_process(item: pytest.Item) -> bool:
    cls = getattr(item, "cls", None)
    return isinstance(cls, type) and issubclass(cls, MultiProcessTestCase)
