"""Runs a pytest item on a rank: fixtures, the test and teardown, with a message to the runner for each step.

The rank was forked from a process that had collected the tests, so nothing is imported or collected again.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import program_of
from dist_testing.core.ground.world import World
from dist_testing.core.process.launcher_messages import RankStart
from dist_testing.core.pytest.expectations import expected_classes
from dist_testing.core.pytest.internals import (
    CaptureManager,
    runtestprotocol,
)
from dist_testing.core.pytest.marked_items import is_method_of_unittest
from dist_testing.core.pytest.pytest_messages import FRONT_END, PYTEST_CASES
from dist_testing.core.pytest.rank_output import log_to_output, print_warnings
from dist_testing.core.pytest.rank_plugins import leave_out_plugins_of_runner, run_item
from dist_testing.core.pytest.reports import skip_reason
from dist_testing.core.rank.bootstrap import RankFrontEnd
from dist_testing.core.rank.debugging import debug_by
from dist_testing.core.rank.rank_world import RankWorld
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.session.front_ends import make_front_end
from dist_testing.core.session.session import current_session

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# Prefix of the reason of a test that called `pytest.xfail`, so that the runner can tell it from a skip.
EXPECTED = "expected failure: "
_NO_LOG_CAPTURE = (
    "A rank calls request.getfixturevalue for `caplog`, but pytest's log capture is off.\n"
    "It is on only if a collected test, or a fixture of one, names `caplog` as an argument.\n"
    "Name it as an argument."
)


class OwnItems(Protocol):
    """Gives each rank that is a thread its own items."""

    def own(self, item: pytest.Item) -> pytest.Item:
        """Return the calling thread's own copy of a collected item; call it once per thread."""


class _ThisRank(threading.local):
    """The rank that runs on this thread: the only one of its process, or one of several."""

    world: World | None = None
    reporter: Reporter
    is_in_test = False
    sub_test_error: BaseException | None = None


_this = _ThisRank()


def current_world() -> World | None:
    """Return the world of the rank that runs on this thread; None in the runner."""
    return _this.world


class PytestRankContext:
    """The rank context of a pytest session: the collected items, and a pytest that is fit for a rank.

    Attributes:
        collection_errors: Errors of files that could not be collected, where ranks collect the tests themselves.
    """

    def __init__(self, config: pytest.Config, items: Mapping[str, pytest.Item]) -> None:
        self._config = config
        # By node id; filled when the tests have been collected.
        self._items = items
        self._reporting = _RankReporting()
        self._thread_items: OwnItems | None = None
        self._thread_cases = 0
        self._explaining: contextlib.AbstractContextManager[object] | None = None
        self.collection_errors: list[str] = []

    @property
    def has_tests(self) -> bool:
        """Return whether a test that runs on ranks has been collected."""
        return bool(self._items)

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the tests that run on ranks."""
        return tuple(self._items)

    def prepare(self) -> None:
        """Switch off the plugins of pytest that belong to the runner."""
        config = self._config
        capture_nothing(config)
        print_warnings()
        log_to_output(config)
        if (session := current_session()) is not None and (target := session.engine.spec.target):
            debug_by(f"bazel build {target} && {program_of(target)}")
        # Output of pytest itself on a rank, such as of --setup-show, goes into the rank's output.
        config.get_terminal_writer()._file = sys.stdout
        # The runner judges skip marks and expected failures, once for all ranks.
        config.pluginmanager.unregister(name="skipping")
        leave_out_plugins_of_runner(config)
        if "numpy" in sys.modules and any(map(is_method_of_unittest, self._items.values())):
            # Such a test seeds its generators. Otherwise each rank imports it at first use.
            importlib.import_module("numpy.random")
        config.pluginmanager.register(self._reporting, "dist_testing_rank_reporting")
        if not any("caplog" in getattr(item, "fixturenames", ()) for item in self._items.values()):
            # The plugin adds handlers to each of torch's 42 loggers, three times per test.
            config.pluginmanager.unregister(name="logging-plugin")
            self._reporting.refused = {"caplog": _NO_LOG_CAPTURE}

    def front_end(self, body: CaseBody) -> RankFrontEnd:
        """Return pytest's, or the one that the case names: a method of a unittest class brings its own rules."""
        if body.front_end != FRONT_END:
            return make_front_end(body.front_end, self._config, self._items)
        if (nodeid := PYTEST_CASES.from_wire(body.content).nodeid) not in self._items:
            text = (
                f"This rank has not collected {nodeid}.\n"
                "The test files, or modules that they import, differ from the runner's.\n"
                "Give all ranks the same files, and collect the same tests in every process."
            )
            raise UsageError("\n".join([text, *self.collection_errors]))
        return PytestRankFrontEnd(self._config, self._items)

    def thread_front_ends(self, body: CaseBody, world_size: int) -> Sequence[RankFrontEnd]:
        """Return one for each rank, with its own copy of what pytest keeps while a test runs; they share the store."""
        from torch._C._distributed_c10d import HashStore

        if self._thread_items is None:
            any_item = next(iter(self._items.values()))
            add_on = add_on_named("threads", "ranks that are threads")
            self._reporting.refused = add_on.load("refused_fixtures")
            self._thread_items = add_on.load("pytest_items")(self._config, any_item.session)
            # For all threads, until the process ends.
            self._explaining = explain_assertions(any_item)
            self._explaining.__enter__()
        store = HashStore()
        front_ends = [
            PytestRankFrontEnd(self._config, self._items, self._thread_items, store, self._thread_cases)
            for _ in range(world_size)
        ]
        self._thread_cases += 1
        return front_ends


def explain_assertions(item: pytest.Item) -> contextlib.AbstractContextManager[object]:
    """Let pytest add details, such as a diff, to the assertions of an item in a block."""
    return _around(item, "assertion")


def record_warnings(item: pytest.Item, reporter: Reporter) -> contextlib.AbstractContextManager[object]:
    """Apply the filters of the session and the marks of the item in a block; send each warning to the runner."""
    _this.reporter = reporter
    return _around(item, "warnings")


def _around(item: pytest.Item, name: str) -> contextlib.AbstractContextManager[object]:
    """Do what a plugin of pytest does around a test: on ranks its hook `pytest_runtest_protocol` is not called."""
    plugin: Any = item.config.pluginmanager.getplugin(name)
    hook = getattr(plugin, "pytest_runtest_protocol", None)
    return contextlib.nullcontext() if hook is None else contextlib.contextmanager(hook)(item)


class PytestRankFrontEnd:
    """Runs collected items on a rank."""

    def __init__(
        self,
        config: pytest.Config,
        items: Mapping[str, pytest.Item],
        thread_items: OwnItems | None = None,
        store: Store | None = None,
        cases: int = 0,
    ) -> None:
        self._config = config
        self._items = items
        # Makes a rank's own items, where ranks are threads.
        self._thread_items = thread_items
        # Shared by the ranks; None for the store at the world's port.
        self._store = store
        # How many cases the process has run before.
        self._cases = cases
        self._world: RankWorld | None = None

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Make the world."""
        reporter.phase("init")
        self._world = _this.world = RankWorld.of(start, self._store, self._cases, reporter.runner)
        _this.reporter = reporter
        self._world.prepare()
        if start.rank != start.request.debug_rank:
            # Without a terminal a prompt reads the end of its input at once, and ends the test.
            for name in ("pdbinvoke", "pdbtrace"):
                self._config.pluginmanager.unregister(name=name)

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Run one item as pytest would."""
        assert self._world is not None
        self._world.begin_case()
        case = PYTEST_CASES.from_wire(body.content)
        item = self._items[case.nodeid]
        if self._thread_items is not None:
            item = self._thread_items.own(item)
        reporter.expectations = expected_classes(item)
        _keep_temporary_files_in(item.config, self._world)
        if self._thread_items is None:
            # Where the runner was forked in the middle of a test, this item or another one is set up already.
            setup_state: Any = item.session._setupstate
            setup_state.teardown_exact(item.parent)
        with contextlib.ExitStack() as stack:
            if self._thread_items is None:
                # Both change the whole process, not one thread.
                stack.enter_context(record_warnings(item, reporter))
                stack.enter_context(explain_assertions(item))
            try:
                if self._thread_items is None:
                    run_item(item)
                else:
                    # Wrappers of other plugins do not expect several threads.
                    runtestprotocol(item, log=False, nextitem=None)
            except pytest.exit.Exception as error:
                # Raised by `pytest.exit`, and when the user quits the debugger.
                reporter.end_session(str(error))
                if not reporter.failed:
                    reporter.raised(error, str(item.repr_failure(pytest.ExceptionInfo.from_exception(error))))

    def finish(self) -> None:
        """Destroy the groups."""
        assert self._world is not None
        self._world.finish()


class _RankReporting:
    """A pytest plugin that reports phases and outcomes to the runner."""

    # Fixture to the error of a rank that uses it.
    refused: Mapping[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if (text := self.refused.get(fixturedef.argname)) is not None:
            raise UsageError(text)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        _this.reporter.phase("setup")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        _this.reporter.phase("call")
        _this.is_in_test = True
        try:
            return (yield)
        finally:
            _this.is_in_test = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        _this.reporter.phase("teardown")

    # Around the hooks of conftests, which may change the report: its outcome counts, as in plain pytest.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if _this.is_in_test:
            # A sub-test failed; its own report names it.
            _this.sub_test_error = call.excinfo and call.excinfo.value
        elif call.excinfo is None:
            _report_without_exception(report)
        elif not report.passed:
            if isinstance(call.excinfo.value, pytest.FixtureLookupError):
                # Its text would be the representation of the fixture request.
                call.excinfo.value.args = (call.excinfo.value.msg or f"no fixture {call.excinfo.value.argname!r}",)
            if isinstance(call.excinfo.value, pytest.xfail.Exception):
                _this.reporter.skipped(f"{EXPECTED}{call.excinfo.value.msg}")
            elif report.skipped:
                _report_skip(report)
            else:
                _this.reporter.ended_by(call.excinfo.value, str(report.longrepr))
        return report

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        if hasattr(_this, "reporter"):  # pytest also brings the warnings of the collection, when it registers this
            _this.reporter.warned(warning_message)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report the end of a sub-test: a rank logs no other reports. A skipped sub-test does not skip the test."""
        error, _this.sub_test_error = _this.sub_test_error, None
        if error is not None and report.failed:
            _this.reporter.ended_by(error, f"{report.head_line}\n{report.longrepr}")
        elif _this.is_in_test and report.failed:
            _report_without_exception(report)


def _report_without_exception(report: pytest.TestReport) -> None:
    """Report what a hook has made of a report whose test code raised nothing; a pass is no news."""
    if report.failed:
        # The last line, as of a traceback: there the message is.
        text = str(report.longrepr or "a hook of pytest set the outcome to failed, without a text")
        _this.reporter.raised(pytest.fail.Exception(text.rstrip().rpartition("\n")[2]), text)
    elif report.skipped:
        _report_skip(report)


def _report_skip(report: pytest.TestReport) -> None:
    if hasattr(report, "wasxfail"):
        _this.reporter.skipped(f"{EXPECTED}{report.wasxfail}")
    else:
        _this.reporter.skipped(skip_reason(report))


def capture_nothing(config: pytest.Config) -> None:
    """Stop pytest's own capture, which was started in the runner: a rank's output goes to its log.

    The fixtures `capsys` and `capfd` still work: they need a capture manager, but not one that captures.
    """
    config.pluginmanager.unregister(name="capturemanager")
    fresh = CaptureManager("no")
    config.pluginmanager.register(fresh, "capturemanager")
    fresh.start_global_capturing()


def _keep_temporary_files_in(config: pytest.Config, world: RankWorld) -> None:
    # Otherwise `tmp_path` makes a numbered folder per rank outside the run's folder, and nothing removes it. pytest
    # makes the folder when a test uses the fixture.
    factory: Any = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        factory._basetemp = None
        factory._given_basetemp = world.pytest_tmp_path
