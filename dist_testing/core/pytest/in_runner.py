"""The runner's half of the pytest front end: pytest collects, selects, skips and reports tests here.

The test itself, with its fixtures, runs on the ranks (`pytest_rank`).
"""

from __future__ import annotations

import contextlib
import json
import os
import unittest
from collections import ChainMap
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dist_testing.core.engine.engine import Engine, check_expected_ranks
from dist_testing.core.engine.interrupts import raise_again, raise_on_termination
from dist_testing.core.engine.needs import missing_need
from dist_testing.core.ground.add_ons import AddOn, add_on_named
from dist_testing.core.ground.backends import add_backends
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case, CaseBody, CaseFailedError, CaseResult, check_keepable
from dist_testing.core.ground.errors import DistTestingError, LaunchError, UsageError
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.skips import unmet_requirement
from dist_testing.core.launch.clean import spare_cuda
from dist_testing.core.launch.isolation import Reuse, isolation_named
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.pytest import marked_items, other_plugins, reports
from dist_testing.core.pytest.debugger import check_world, debug_rank, leave_ranks_to_ranks
from dist_testing.core.pytest.internals import evaluate_skip_marks
from dist_testing.core.pytest.marked_items import CASE_KEY, function_of, is_marked, is_multi_process
from dist_testing.core.pytest.marker import Distributed, read_marker
from dist_testing.core.pytest.option_values import chosen, declared_backends, read_spec, timeout_s
from dist_testing.core.pytest.options import (
    JOBS_OPTION,
    KEEPS_OPTION,
    arguments_of_part,
    has_mark,
    register_plugin,
    with_plugin,
)
from dist_testing.core.pytest.pytest_rank import FRONT_END, PytestRankContext, current_world
from dist_testing.core.pytest.session_events import SessionEvents
from dist_testing.core.pytest.world_items import RanksFailedError, ended_from_outside, make_world_item
from dist_testing.core.rank.bootstrap import RankContext
from dist_testing.core.session.existing_world import ExistingRank, existing_rank
from dist_testing.core.session.session import Session, close_session, open_session, warnings_of

# The Bazel main sets these before pytest starts; outside Bazel the options replace them.
BUDGET_KEY = pytest.StashKey[Budget]()
OUTPUTS_KEY = pytest.StashKey[Path | None]()
# The Bazel main sets this: it suspends its own time limit while the engine watches the deadline.
PAUSE_LIMIT_KEY = pytest.StashKey[Callable[[], contextlib.AbstractContextManager[None]]]()
# Set in a fresh interpreter: called with the rank context after the collection, instead of running the tests.
FRESH_KEY = pytest.StashKey[Callable[[RankContext], NoReturn]]()


class RunnerPlugin:
    """Owns the engine of a session, and runs its marked tests."""

    def __init__(self, config: pytest.Config) -> None:
        spare_cuda()
        self._config = config
        target = config.stash.get(marked_items.SPEC_KEY, None)
        # Under Bazel the variables of torchrun do not count. A fresh interpreter already belongs to a world of ours.
        owner: AddOn | None = None
        self._rank_info: ExistingRank | None = None
        self._existing_error: UsageError | None = None
        if target is None and FRESH_KEY not in config.stash:
            try:
                owner, self._rank_info = existing_rank() or (None, None)
            except UsageError as error:
                # Reported only if the session has a distributed test.
                self._existing_error = error
        if target is None:
            add_backends(declared_backends(config))
        else:
            add_backends([(target.backend, target.target)], target.backend_names)
        self._spec = config.stash[marked_items.RUN_SPEC_KEY] = read_spec(config, target, self._rank_info)
        self._pool_keeps = check_keepable(f"The ini option {KEEPS_OPTION}", config.getini(KEEPS_OPTION))
        limit_s = timeout_s(config, self._spec)
        fails_on_missing = chosen(config, "--dist-on-missing", ("skip", "fail")) == "fail"
        # Before the option of the debugger: worlds side by side refuse it. 0 is for as many as there is room for.
        jobs, jobs_text = 1, config.getoption(JOBS_OPTION)
        if jobs_text is not None:
            jobs = add_on_named("jobs", f"{JOBS_OPTION}={jobs_text}").load("read")(jobs_text, config, self._rank_info)
        debugged = debug_rank(config, self._rank_info)
        self._outputs = config.stash.get(OUTPUTS_KEY, None)
        # The item that pytest runs now, if it runs on ranks.
        self._marked: pytest.Item | None = None
        config.stash[marked_items.RUN_KEY] = self._run_world
        # The part of the session that ranks use.
        self.context = PytestRankContext(config)
        # Node id to the number of tests after it, which share the time of the run with it.
        self.cases_after: dict[str, int] = {}
        # A fresh interpreter, and every rank but the first under torchrun, run a part of another session.
        is_part = FRESH_KEY in config.stash or (self._rank_info is not None and self._rank_info.rank > 0)
        self._events = SessionEvents(config, self._spec, writes_file=not is_part)
        self._engine = self._make_engine(owner)
        self._engine.debug_rank = debugged
        self._engine.events = self._events.stream
        if not hasattr(config, "workerinput"):
            self._engine.log_line = self._events.log_line
        self._session = Session(
            self._engine,
            limit_s,
            fails_on_missing,
            bool(config.getoption("--dist-strict-collectives")),
            pause_limit=config.stash.get(PAUSE_LIMIT_KEY, contextlib.nullcontext),
            reports=reports.report_folder(config, self._outputs),
        )
        open_session(self._session)
        config.pluginmanager.register(other_plugins)
        self._look_ahead: Any = None
        if jobs != 1:
            look_ahead = add_on_named("jobs", JOBS_OPTION).load("look_ahead")
            self._look_ahead = look_ahead(config, jobs, self, self._engine, self._events)
            config.pluginmanager.register(self._look_ahead)
        for add_on in with_plugin(config):
            register_plugin(config, add_on)

    def _make_engine(self, owner: AddOn | None) -> Engine:
        config = self._config
        budget = config.stash.get(BUDGET_KEY, Budget())
        if (rank_side := config.stash.get(marked_items.RANK_SIDE_KEY, None)) is not None:
            # Such ranks have an interpreter without pytest and what pytest changes.
            return Engine(self._spec, budget, *rank_side, may_fork_runner=False)
        session = arguments_of_part(config), str(config.invocation_params.dir), self._spec.text
        # By name: the module that collects the tests again imports this one.
        loader = Loader(f"{__package__}.fresh", json.dumps(session))
        arguments = self._spec, budget, self.context, loader
        if owner is None:
            return Engine(*arguments)
        engine: Engine = owner.load("pytest_engine")(config, *arguments, self._rank_info)
        return engine

    def _sizes(self, definition: pytest.Function, marker: Distributed) -> tuple[int, ...]:
        for size in marker.world_size:
            self._session.check_declared(definition.nodeid, size)
        return marker.world_size or self._spec.world_sizes

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Make one case per world size of a marked test."""
        if marked_items.has_other_meaning(self._config) or (marker := read_marker(metafunc.definition)) is None:
            # `read_markers` refuses a marker of two meanings.
            return
        marked_items.check_parameters(metafunc.definition)
        sizes = self._sizes(metafunc.definition, marker)
        if "world_size" not in metafunc.fixturenames:
            metafunc.fixturenames.append("world_size")
        ids: list[Any] = [f"world_size={size}" for size in sizes] if len(sizes) > 1 else [pytest.HIDDEN_PARAM]
        metafunc.parametrize("world_size", sizes, indirect=True, ids=ids)

    def read_markers(self, items: list[pytest.Item]) -> None:
        """Give each marked item its case, deselect tests for other backends, and take out those with an error."""
        raise_again()
        other: list[pytest.Item] = []
        wrong: dict[pytest.Item, UsageError] = {}
        for item in items:
            if not isinstance(item, pytest.Function) or not has_mark(item):
                continue
            try:
                marker = marked_items.checked_marker(item)
                size = marked_items.size_of_case(item, self._sizes(item, marker))
                case = item.stash[CASE_KEY] = self._case(item, marker, size)
                if not marker.is_for(self._spec.backend):
                    other.append(item)
                elif marker.world_size:
                    # What the marker alone decides. What an option of the run decides concerns a test when it runs.
                    check_expected_ranks(case)
                    for name in marker.settings:
                        if (add_on := add_on_named(name, item.nodeid)).check:
                            add_on.load("check")(case, self._spec)
                make_world_item(item)
            except UsageError as error:
                wrong[item] = error
        gone = {*other, *wrong}
        items[:] = [item for item in items if item not in gone]
        for item, reason in wrong.items():
            item.ihook.pytest_collectreport(report=pytest.CollectReport(item.nodeid, "failed", str(reason), []))
        if other:
            self._config.hook.pytest_deselected(items=other)
        marked_items.register_plugins(self._config, items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep errors for ranks that collect the tests themselves: a case may need a test of such a file."""
        if report.failed:
            self.context.collection_errors.append(str(report.longrepr))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start the fork server now: the tests are imported, and no test code has run."""
        ours = [item for item in session.items if is_marked(item) or is_multi_process(item)]
        self.context.items.update({marked_items.rank_name(item): item for item in ours})
        if (then := self._config.stash.get(FRESH_KEY, None)) is not None:
            if not session.testsfailed:
                then(self.context)
            return
        if self._config.option.collectonly or (self._rank_info and self._rank_info.rank):
            return
        self.cases_after = {item.nodeid: after for after, item in enumerate(reversed(session.items))}
        # If this rank has collected nothing because of an error, its peers still wait for it.
        if not ours and not (self._rank_info and session.testsfailed):
            return
        try:
            if self._existing_error is not None:
                raise self._existing_error
            if not self._config.pluginmanager.has_plugin("terminalreporter"):
                raise UsageError(
                    "-p no:terminal: the plugin terminalreporter of pytest is missing.\n"
                    "The library writes its notes, and pytest's own output on ranks, by this plugin.\n"
                    "Run distributed tests without -p no:terminal."
                )
            marked_items.check_pools(item.stash[CASE_KEY] for item in ours if is_marked(item))
            check_world(self._config, self._engine.debug_rank, ours)
            leave_ranks_to_ranks(self._config)
            raise_on_termination()
            # The reports of this process need it, and a fork then has it: a rank takes 0.4 ms to find it.
            _ = [item.location for item in ours]
            engines = [self._engine] if self._look_ahead is None else self._look_ahead.engines(session.items)
            forking = [item for item in ours if marked_items.isolation_of(item).forks_each_case]
            # A unittest class counts as one rank: its size is not known yet.
            forks = sum(item.stash[CASE_KEY].world_size if is_marked(item) else 1 for item in forking)
            launchers = [engine.prepare(forks // len(engines))[0] for engine in engines]
            reasons = launchers[0].unclean_reasons
        except (LaunchError, UsageError) as error:
            raise pytest.UsageError(str(error)) from error
        if reasons:
            self._config.get_terminal_writer().line(
                f"dist_testing: ranks are forked from a fresh interpreter and not from this one: {'; '.join(reasons)}"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Note the item."""
        self._marked = item if is_marked(item) else None
        self._engine.cases_after = self.cases_after.get(item.nodeid, 0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> bool | None:
        """Set no fixture of a marked test up in the runner: hypothesis asks for each, to check its scope."""
        if self._marked is None or current_world() is not None:
            return None
        fixturedef.cached_result = None, fixturedef.cache_key(request), None  # type: ignore[arg-type]  # a subclass
        self._marked.addfinalizer(lambda: fixturedef.finish(request))  # type: ignore[arg-type]
        return True

    def _run_world(self, item: pytest.Item) -> None:
        """Run a marked item on the ranks, and raise what pytest is to report."""
        try:
            case = self.case_of(item)
            with ended_from_outside(item):
                result = self._engine.run(case) if self._look_ahead is None else self._look_ahead.run(item, case)
            self._judge(item, result)
        except unittest.SkipTest as skip:
            raise pytest.skip.Exception(str(skip), _use_item_location=True) from None
        except DistTestingError as error:
            reports.decide_xfail(item, is_expected=False)
            if not str(error).startswith(item.nodeid):
                error.args = (f"{item.nodeid}: {error}",)
            raise

    def case_of(self, item: pytest.Item) -> Case:
        """Return the case of a marked item.

        Raises:
            DistTestingError: If the item cannot run as it is marked.
            unittest.SkipTest: If the machine lacks something.
        """
        case = item.stash[CASE_KEY]
        if missing := self._missing(getattr(item, "obj", None), case.world_size, case.settings):
            raise self._session.promise_error(item.nodeid, missing, case.world_size) or unittest.SkipTest(missing)
        return case

    def _case(self, item: pytest.Item, marker: Distributed, size: int) -> Case:
        isolation = isolation_named(marker.isolation or self._spec.isolation)
        assert item.parent is not None
        pool = f"{marked_items.rank_name(item.parent)}{'' if marker.init else ' without a group'}"
        if isolation.reuse is Reuse.NOTHING:
            pool = ""
        elif isolation.reuse is not Reuse.RANKS:
            # Each case has new threads; cases of the same world size share the process.
            pool += f", {size} threads"
        return Case(
            name=item.nodeid,
            world_size=size,
            body=CaseBody(
                FRONT_END,
                marked_items.rank_name(item),
                only_test=item.nodeid,
                strict_calls=self._session.is_strict(marker.strict_collectives),
                may_change=self._pool_keeps,
            ),
            timeout_s=marker.timeout or self._session.timeout_s,
            isolation=isolation.name,
            pool=pool,
            init=marker.init,
            expected_exits=marker.expected_exits,
            settings={**self._spec.settings, **marker.settings},
        )

    def _judge(self, item: pytest.Item, result: CaseResult) -> None:
        for message in warnings_of(result):
            item.ihook.pytest_warning_recorded.call_historic(
                kwargs={"warning_message": message, "nodeid": item.nodeid, "when": "runtest", "location": None}
            )
        if result.end_session:
            item.session.shouldstop = result.end_session
        is_expected = reports.expects(item, result)
        if is_expected and not result.has_only_raised:
            result, is_expected = result.with_exceptions_expected(), False
        known = {(name, str(value)) for name, value in item.user_properties}
        # Hooks may have recorded some here, too.
        item.user_properties += [pair for pair in result.outcomes[0].recorded if pair not in known]
        if not is_expected:
            item.user_properties += reports.properties(result)
        verdict = result.verdict
        if verdict.status is Status.SKIPPED:
            reports.end_skipped(item, verdict.reason)
        if verdict.status is Status.FAILED:
            reports.decide_xfail(item, is_expected=is_expected)
            raise RanksFailedError(reports.failure_text(item, result, self._spec, self._outputs), result)

    def runs_on_ranks(self, item: pytest.Item) -> bool:
        """Return whether the item runs on ranks, processes or threads, if it runs at all."""
        if isinstance(item, pytest.Function) and has_mark(item):
            try:
                marker = read_marker(item)
            except UsageError:
                # Reported when the markers are read.
                return True
            return marker is not None and marker.is_for(self._spec.backend)
        if is_marked(item) or is_multi_process(item):
            return True
        return marked_items.starts_ranks(function_of(item), item.path)

    def skips_by_mark(self, item: pytest.Item) -> bool:
        """Return whether the item will certainly skip; False if that is unknown."""
        cls, function = getattr(item, "cls", None), function_of(item)
        try:
            if evaluate_skip_marks(item) or any(getattr(one, "__unittest_skip__", False) for one in (function, cls)):
                return True
            # A property of a class has its value only on an instance.
            of_class = getattr(cls, "world_size", None) if is_multi_process(item) else None
            size: object = item.stash[CASE_KEY].world_size if is_marked(item) else of_class
            if not isinstance(size, int):
                return False
            missing = self._missing(function, size, {})
        except (Exception, pytest.fail.Exception):
            # The error is reported when the item runs.
            return False
        return missing is not None and self._session.promise_error(item.nodeid, missing, size) is None

    def _missing(self, function: Any, size: int, settings: Mapping[str, Any]) -> str | None:
        """Return what the machine lacks for a test, by its spec or its requirements; None if nothing is known."""
        unmet = function and unmet_requirement(function, ChainMap({"WORLD_SIZE": str(size)}, os.environ))
        return missing_need(self._spec, size, settings) or unmet

    def shared_ranks(self, item: pytest.Item) -> str:
        """Return what the item shares with other cases: a name for the worker pool or process; "" for nothing."""
        if is_marked(item):
            return item.stash[CASE_KEY].pool
        if not is_multi_process(item) or marked_items.isolation_of(item).reuse is Reuse.NOTHING:
            return ""
        return item.parent.nodeid if item.parent is not None else ""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """End the worker pool after its last test."""
        raise_again()
        is_last = nextitem is None or self.shared_ranks(nextitem) != self.shared_ranks(item)
        if is_marked(item) and is_last and (trouble := self._engine.end_pool()):
            raise DistTestingError(f"{item.nodeid}: {trouble}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Show an error of this library by its text, also one of a unittest case or of a plain test."""
        report = yield
        error = call.excinfo and call.excinfo.value
        if isinstance(error, RanksFailedError | DistTestingError):
            report.longrepr = reports.text_at_test(item, str(error))
            report.user_properties += (cause := reports.cause_of(error))
            # pytest takes those of its XML file from the report of the teardown.
            item.user_properties += [pair for pair in cause if pair not in item.user_properties]
        elif isinstance(error, CaseFailedError) and call.when == "call":
            text = reports.failure_text(item, error.result, self._spec, self._outputs)
            report.longrepr = reports.text_at_test(item, text)
            report.user_properties += reports.properties(error.result)
        return report

    def pytest_unconfigure(self) -> None:
        """Close the engine, then print the failures at the end of the log."""
        self._engine.close()
        self._events.end()
        close_session(self._session)
