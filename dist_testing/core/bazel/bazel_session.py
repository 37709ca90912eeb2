"""Runs pytest as Bazel wants it: passes on the spec, filters and shards the cases, limits their time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.bazel.conclusion import Banner, Conclusion
from dist_testing.core.bazel.protocol import Protocol
from dist_testing.core.bazel.sharding import assign_shards
from dist_testing.core.bazel.timings import read_timings
from dist_testing.core.bazel.watch import Watch
from dist_testing.core.events.event import EventStream
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import InterruptedRunError, ReportError
from dist_testing.core.ground.record import case_name, module_of, name_parts
from dist_testing.core.ground.spec import Spec
from dist_testing.core.pytest import reports
from dist_testing.core.pytest.in_runner import BUDGET_KEY, OUTPUTS_KEY, PAUSE_LIMIT_KEY
from dist_testing.core.pytest.internals import parse_expression
from dist_testing.core.pytest.marked_items import SPEC_KEY, is_marked, is_multi_process
from dist_testing.core.pytest.options import shows_output_at_once
from dist_testing.core.pytest.plugin import runner_plugin
from dist_testing.core.pytest.session_events import EVENTS_KEY

# A filter that names a case: a path, classes and a function, joined by `::` or `.`, and parameters of any form.
_NAME = re.compile(r"[\w./:+~@=-]*\w(?:\[.*\])?", re.DOTALL)
# Limits of the list of failures at the end of the log.
_MAX_HEADLINES = 30
_HEADLINE_CHARS = 500


class _TimeOverError(pytest.fail.Exception):  # type: ignore[misc,name-defined]  # a class in an attribute
    """Ends a part of a test in the runner, as `pytest.fail` does, so that pytest tears fixtures down."""


def _limited(phase: str) -> Callable[[BazelSession, pytest.Item], Generator[None, object, object]]:
    """Return the hook that limits a part of each test in the runner: its setup, its call or its teardown."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def limited(self: BazelSession, item: pytest.Item) -> Generator[None, object, object]:
        if is_marked(item) or is_multi_process(item):
            # The test waits for ranks, and the engine limits their time.
            return (yield)
        self.has_run_tests = True
        end_s = self._shares.case_end_s(self._conclusion.to_come - 1)
        began_s = time.monotonic()

        def over(stacks: str) -> _TimeOverError:
            self._over = (
                f"{item.nodeid}: its {phase} had not ended after {time.monotonic() - began_s:.1f} s, its share of the "
                "target's time.\n"
                "The test is not distributed: it runs in the runner, and hangs there or is slow.\n"
                "The stacks show where it was. If it is slow, give the target a larger size or timeout.\n\n"
                f"{stacks}"
            )
            return _TimeOverError(self._over, pytrace=False)

        with self._watch.until(end_s, over):
            return (yield)

    return limited


@dataclass(eq=False)
class BazelSession:
    """A pytest plugin for a run under Bazel. Register it before all other plugins.

    Attributes:
        has_run_tests: Whether a test has run in this process, and not only on ranks.
    """

    _spec: Spec
    _protocol: Protocol
    _head: Banner
    _conclusion: Conclusion
    _events: EventStream
    _shares: Budget
    _watch: Watch
    # The durations of cases, for the shard assignment.
    _timings: Path | None
    # Called when the tests are imported and the fork server runs, also after a failure.
    _on_collected: Callable[[], None]
    has_run_tests: bool = field(default=False, init=False)
    _doing: str = field(default="", init=False)
    _over: str = field(default="", init=False)
    _knows_all: bool = field(default=True, init=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Generator[None, object, object]:
        """Pass the spec to the plugin before pytest configures any plugin, and limit the import of conftest files."""
        early_config.stash[SPEC_KEY] = self._spec
        early_config.stash[BUDGET_KEY] = self._shares
        early_config.stash[EVENTS_KEY] = self._events
        early_config.stash[OUTPUTS_KEY] = self._protocol.outputs
        early_config.stash[PAUSE_LIMIT_KEY] = self._watch.paused
        self._doing = "a conftest.py was being imported"
        with self._watch.until(self._shares.end_s, self._collection_over):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Refuse worker processes."""
        if any(config.getoption(name, None) for name in ("numprocesses", "tx")):
            raise pytest.UsageError(
                f"{self._spec.target}: -n (pytest-xdist) under Bazel.\n"
                "Bazel's runner keeps the time, starts the ranks and writes the results; a worker of pytest-xdist "
                "knows nothing of it.\n"
                "Remove -n and --tx from the target's args, and set shard_count, which spreads the cases."
            )

    def pytest_configure(self, config: pytest.Config) -> None:
        """End the first line of the log at once if output is shown at once."""
        if shows_output_at_once(config):
            self._head.end_line()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Limit the time of the import of test files."""
        try:
            with self._watch.until(self._shares.end_s, self._collection_over):
                return (yield)
        finally:
            self._on_collected()

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Note the file that pytest collects now."""
        self._doing = f"{collector.nodeid or 'the target'} was being collected"

    def _collection_over(self, stacks: str) -> InterruptedRunError:
        self._watch.interrupted_at = (
            "The code there hangs or is slow; the stacks show where. If it is slow, give the target a larger size or "
            f"timeout.\n\n{stacks}"
        )
        return InterruptedRunError(f"the target's time was over while {self._doing}")

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
        """Keep the cases that match the filter and belong to this shard."""
        wanted = self._protocol.test_filter
        runner = runner_plugin(config)
        self._conclusion.found = len(items)
        if self._knows_all:
            self._conclusion.has_ranks = any(runner.runs_on_ranks(item) for item in items)
        if wanted:
            self._filter(config, items, wanted)
        yield
        # A conftest may have added markers.
        self._conclusion.has_ranks |= self._knows_all and any(map(runner.runs_on_ranks, items))
        self._conclusion.is_filter_in_vain = self._knows_all and bool(wanted) and not items
        index, total = self._protocol.shard
        if total > 1:
            groups = {item.nodeid: runner.shared_ranks(item) for item in items}
            shards = assign_shards(groups, total, self._durations(items))
            # A shard runs only its own cases, but marks can show that the other shards skip all of theirs.
            self._conclusion.decides_for_target = self._conclusion.is_promised and all(
                shards[item.nodeid] == index or runner.skips_by_mark(item) for item in items
            )
            _keep(config, items, [item for item in items if shards[item.nodeid] == index])

    pytest_runtest_setup = _limited("setup")
    pytest_runtest_call = _limited("call")
    pytest_runtest_teardown = _limited("teardown")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Make the report a failure if the limit was reached, even if the test caught the error or expects to fail."""
        report = yield
        text, self._over = self._over, ""
        if text:
            report.outcome = "failed"
            # Otherwise it would be an expected failure.
            vars(report).pop("wasxfail", None)
            report.longrepr = reports.text_at_test(item, text)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        """Note that the collection is over, for the text about the time limit."""
        self._doing = "ranks were being prepared"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that fails or skips as a whole: its cases are unknown."""
        if not report.passed:
            self._knows_all = False

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note why the run ended early."""
        self._conclusion.interruption = str(excinfo.value) or excinfo.typename

    def _filter(self, config: pytest.Config, items: list[pytest.Item], wanted: str) -> None:
        """Select cases by name, as reports or unittest write it; if none has the name, by an expression of pytest."""
        if named := [item for item in items if wanted in _names(item.nodeid)]:
            _keep(config, items, named)
            return
        try:
            parse_expression(wanted, "--test_filter")
        except pytest.UsageError as error:
            if _NAME.fullmatch(wanted) is None:
                raise pytest.UsageError(
                    f"{error}.\n"
                    f"It names no case of {self._spec.target}, and pytest cannot parse it as an expression.\n"
                    "Write a name as reports do, or parts of names joined by `and`, `or` and `not`."
                ) from None
            # It may name a case of another target: Bazel gives the filter to all targets.
            _keep(config, items, [])
        else:
            # The hook of pytest that applies it runs after this one.
            given = config.option.keyword
            config.option.keyword = f"({given}) and ({wanted})" if given else wanted

    def _durations(self, items: Sequence[pytest.Item]) -> Mapping[str, float]:
        if self._timings is None:
            return {}
        try:
            known = read_timings(self._timings).get(self._spec.target, {})
        except ReportError as error:
            self._conclusion.warn(f"{error}\nThe shard assignment takes all cases for equally long.")
            return {}
        return {item.nodeid: known[key] for item in items if (key := case_name(item.nodeid)) in known}


def _keep(config: pytest.Config, items: list[pytest.Item], kept: Sequence[pytest.Item]) -> None:
    chosen = {item.nodeid for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = kept


def _names(nodeid: str) -> set[str]:
    """Return all names that select a case: `test_x`, `Class.test_x`, `file.py::Class`, `module`."""
    (path, *rest), parameters = name_parts(nodeid)
    module = module_of(path)
    names = set()
    for first in (path, module, module.rpartition(".")[2]):
        parts = [first, *rest]
        for end in range(1, len(parts) + 1):
            for start in range(end):
                names |= {joint.join(parts[start:end]) for joint in ("::", ".")}
    # Parameters follow the function, the last part.
    return names | {name + parameters for name in names}


class FailuresLast:
    """A pytest plugin that prints the reports of failures last: most users of Bazel read only the end of a log.

    Register it before the library's own, which prints nothing after its engine has ended.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, config: pytest.Config) -> Generator[None, object, object]:
        """Let pytest print its summary without the reports."""
        given, config.option.tbstyle = config.option.tbstyle, "no"
        try:
            return (yield)
        finally:
            config.option.tbstyle = given

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Print the reports; after several, also the first line of each."""
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        reporter.summary_errors()
        reporter.summary_failures()
        failed = [*reporter.getreports("error"), *reporter.getreports("failed")]
        if len(failed) > 1:
            reporter.write_sep("=", f"{len(failed)} failures")
            for report in failed[:_MAX_HEADLINES]:
                reporter.write_line(_headline(report))
            if len(failed) > _MAX_HEADLINES:
                reporter.write_line(f"... and {len(failed) - _MAX_HEADLINES} more; their reports are above")


def _headline(report: pytest.TestReport | pytest.CollectReport) -> str:
    return shorten(" ".join(f"{report.nodeid}: {reports.failure_message(report)}".splitlines()), _HEADLINE_CHARS)
