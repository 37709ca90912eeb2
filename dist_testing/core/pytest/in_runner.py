"""The runner's half of the pytest front end: owns the engine, and runs a marked test on ranks.

pytest collects, selects, skips and reports tests in the runner. The test itself, with its fixtures, runs on the ranks
(`on_rank`).
"""

from __future__ import annotations

import contextlib
import os
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.interrupts import raise_on_termination
from dist_testing.core.engine.kept_logs import keep_logs
from dist_testing.core.engine.needs import missing_need
from dist_testing.core.ground.add_ons import AddOn
from dist_testing.core.ground.backends import add_backends
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.core.ground.errors import DistTestingError, LaunchError, UsageError
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.requirement import unmet_requirement
from dist_testing.core.ground.spec import MAX_WORLD_SIZE, Spec
from dist_testing.core.launch.clean import spare_cuda
from dist_testing.core.launch.isolation import Isolation, Reuse, isolation_named, isolation_names
from dist_testing.core.process.messages import Loader
from dist_testing.core.pytest import reports
from dist_testing.core.pytest.backend_hook import declared_backends
from dist_testing.core.pytest.debugger import check_world, leave_ranks_to_ranks
from dist_testing.core.pytest.marked_items import (
    MARKER_KEY,
    check_pools,
    forks_of,
    function_of,
    is_marked,
    is_multi_process,
    item_marker,
    world_size,
)
from dist_testing.core.pytest.marker import Distributed
from dist_testing.core.pytest.marking import check_all_marked, mark_items
from dist_testing.core.pytest.on_rank import EXPECTED, PytestRankContext
from dist_testing.core.pytest.option_values import check_plugins, read_options
from dist_testing.core.pytest.options import arguments_of_part
from dist_testing.core.pytest.rank_items import RANK_SIDE_KEY, RUN_SPEC_KEY, RankItem
from dist_testing.core.pytest.reruns import RERUN, not_repeated, until_passed
from dist_testing.core.pytest.session_events import SessionEvents
from dist_testing.core.pytest.starters import starts_ranks
from dist_testing.core.rank.bootstrap import RankContext
from dist_testing.core.session.existing_world import ExistingRank, existing_rank
from dist_testing.core.session.messages import PYTEST_CASES, PYTEST_SESSIONS, PytestCase, PytestSession
from dist_testing.core.session.session import Session, open_session

if TYPE_CHECKING:
    from dist_testing.core.pytest.jobs.loop import SideBySide

# The Bazel main sets these before pytest starts; outside Bazel the options replace them.
SPEC_KEY = pytest.StashKey[Spec]()
BUDGET_KEY = pytest.StashKey[Budget]()
OUTPUTS_KEY = pytest.StashKey[Path | None]()
# The Bazel main sets this: it suspends its own time limit while the engine watches the deadline.
PAUSE_LIMIT_KEY = pytest.StashKey[Callable[[], contextlib.AbstractContextManager[None]]]()
# Set in a fresh interpreter: called with the rank context after the collection, instead of running the tests.
FRESH_KEY = pytest.StashKey[Callable[[RankContext], NoReturn]]()


class RunnerPlugin:
    """Owns the engine of a session, and runs its marked tests.

    Attributes:
        context: The rank context: the part of the session that ranks use.
    """

    def __init__(self, config: pytest.Config) -> None:
        spare_cuda()
        self._config = config
        target = config.stash.get(SPEC_KEY, None)
        # Under Bazel the variables of torchrun do not count. A fresh interpreter already belongs to a world of ours.
        self._rank_info: ExistingRank | None = None
        self._attached: AddOn | None = None
        self._attach_error: UsageError | None = None
        if target is None and FRESH_KEY not in config.stash:
            try:
                self._attached, self._rank_info = existing_rank() or (None, None)
            except UsageError as error:
                # Reported only if the session has a distributed test.
                self._attach_error = error
        if target is None:
            add_backends(declared_backends(config))
        else:
            add_backends([(target.backend, target.target)], target.backend_names)
        options = read_options(config, target, self._rank_info)
        self._spec = config.stash[RUN_SPEC_KEY] = options.spec
        self._pool_keeps = options.pool_keeps
        # Why no case can run again after a failure.
        self._no_reruns = ""
        if target is not None:
            self._no_reruns = "Bazel repeats a whole target, and shows each attempt"
        elif self._rank_info is not None:
            self._no_reruns = "the ranks under torchrun cannot be replaced"
        self._outputs = config.stash.get(OUTPUTS_KEY, None)
        self._items: dict[str, pytest.Item] = {}
        self.context = PytestRankContext(config, self._items)
        self._cases_after: dict[str, int] = {}
        # A fresh interpreter, and every rank but the first under torchrun, run a part of another session.
        is_part = FRESH_KEY in config.stash or (self._rank_info is not None and self._rank_info.rank > 0)
        self._events = SessionEvents(config, self._spec, writes_file=not is_part)
        self._engine = self._make_engine()
        self._engine.debug_rank = options.debug_rank
        self._engine.events = self._events.stream
        if not hasattr(config, "workerinput"):
            self._engine.tell = self._events.tell
        self._session = Session(
            self._engine,
            options.timeout_s,
            options.fail_on_missing,
            options.strict_collectives,
            pause_limit=config.stash.get(PAUSE_LIMIT_KEY, contextlib.nullcontext),
            reports=reports.report_folder(config, self._outputs),
        )
        open_session(self._session)
        self._side_by_side: SideBySide | None = None
        if options.jobs != 1:
            # Few sessions need it, and its import takes as long as a case.
            from dist_testing.core.pytest.jobs.loop import SideBySide
            from dist_testing.core.pytest.jobs.plan import Facts

            facts = Facts(self.shared_ranks, self._size_of, self._isolation_of)
            self._side_by_side = SideBySide(config, options.jobs, self._engine, self._events, facts)
            config.pluginmanager.register(self._side_by_side)

    def _make_engine(self) -> Engine:
        config = self._config
        budget = config.stash.get(BUDGET_KEY, Budget())
        if (rank_side := config.stash.get(RANK_SIDE_KEY, None)) is not None:
            # Such ranks have an interpreter without pytest and what pytest changes.
            return Engine(self._spec, budget, *rank_side, may_fork_runner=False)
        session = PytestSession(
            arguments=arguments_of_part(config),
            directory=str(config.invocation_params.dir),
            spec=self._spec.text or None,
            promised_gpus=self._spec.promised_gpus,
        )
        # By name: the module that collects the tests again imports this one.
        loader = Loader(f"{__package__}.fresh", PYTEST_SESSIONS.to_wire(session).decode())
        if self._attached is not None:
            engine: Engine = self._attached.load("pytest_engine")(
                config, self._spec, budget, self.context, loader, self._rank_info
            )
            return engine
        return Engine(self._spec, budget, self.context, loader)

    def world_sizes(self, nodeid: str, marker: Distributed) -> tuple[int, ...]:
        """Return the sizes of the worlds that a marked test runs on."""
        for size in marker.world_size:
            self._session.check_declared(nodeid, size)
        return marker.world_size or self._spec.world_sizes

    def read_markers(self, items: list[pytest.Item]) -> None:
        """Read the markers, also those that a conftest has just added, and deselect tests for other backends."""
        mark_items(self._config, items, self.world_sizes)
        other = {item for item in items if is_marked(item) and not item.stash[MARKER_KEY].is_for(self._spec.backend)}
        if other:
            items[:] = [item for item in items if item not in other]
            self._config.hook.pytest_deselected(items=list(other))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start the fork server now: the tests are imported, and no test code has run."""
        check_all_marked(self._config, session.items)
        ours = [item for item in session.items if is_marked(item) or is_multi_process(item)]
        self._items.update({item.nodeid: item for item in ours})
        if (then := self._config.stash.get(FRESH_KEY, None)) is not None:
            if not session.testsfailed:
                then(self.context)
            return
        if self._config.option.collectonly or (self._rank_info and self._rank_info.rank):
            return
        # All tests share the time of the run, also those that are not distributed.
        self._cases_after = {item.nodeid: after for after, item in enumerate(reversed(session.items))}
        # If this rank has collected nothing because of an error, its peers still wait for it.
        if not ours and not (self._rank_info and session.testsfailed):
            return
        try:
            if self._attach_error is not None:
                raise self._attach_error
            check_pools(self._items.values(), self._pool_of)
            check_plugins(self._config)
            check_world(self._config, self._engine.debug_rank, map(self._world_of, ours))
            leave_ranks_to_ranks(self._config)
            raise_on_termination()
            # The reports of this process need it, and a fork then has it: a rank takes 0.4 ms to find it.
            _ = [item.location for item in ours]
            reasons: Sequence[str] = ()
            if self._side_by_side is None or not self._side_by_side.plan(session.items):
                reasons = self._engine.prepare(forks_of(ours, self._isolation_of))[0].unclean_reasons
        except (LaunchError, UsageError) as error:
            raise pytest.UsageError(str(error)) from error
        if line := not_repeated(filter(is_marked, ours), self._no_reruns):
            self._config.get_terminal_writer().line(line)
        if reasons:
            self._config.get_terminal_writer().line(
                f"dist_testing: ranks are forked from a fresh interpreter and not from this one: {'; '.join(reasons)}"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a marked test on the ranks instead of here."""
        self._engine.cases_after = self._cases_after.get(item.nodeid, 0)
        if not is_marked(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            found = self._run_item(item, nextitem)
        except pytest.fail.Exception as error:
            found = reports.ended_from_outside(item, error)
        for report in found:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if nextitem is None or self._pool_of(nextitem) != self._pool_of(item):
            self._end_pool(item)
        # This item has no setup here, but the module of an earlier item may still need its teardown.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def _run_item(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        def run() -> list[pytest.TestReport]:
            return self._reports(item, item.stash[MARKER_KEY], nextitem)

        return run() if self._no_reruns else until_passed(item, run, self._engine.tell)

    def _reports(self, item: pytest.Item, marker: Distributed, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        try:
            skip_reason, expected = reports.skip_mark(item), reports.xfail_mark(item)
        except UsageError as error:
            return reports.not_run(item, error)
        if skip_reason is not None:
            return reports.skipped(item, skip_reason)
        if expected is not None and not expected.run:
            return reports.expected_failure(item, f"[NOTRUN] {expected.reason}", 0.0)
        size = world_size(item)
        nodes = marker.nodes or self._spec.nodes
        if missing := self._missing(getattr(item, "obj", None), size, nodes):
            refused = self._session.promise_error(item.nodeid, missing, size)
            return reports.skipped(item, missing) if refused is None else reports.not_run(item, refused)
        case = Case(
            name=item.nodeid,
            world_size=size,
            body=self._body_of(item, nextitem, strict_calls=self._session.is_strict(marker.strict_collectives)),
            timeout_s=marker.timeout or self._session.timeout_s,
            isolation=self._isolation_of(item).name,
            pool=self._pool_of(item),
            init=marker.init,
            expected_exits=marker.expected_exits,
            nodes=nodes,
            settings=marker.settings,
            exit_0_passes=isinstance(item, RankItem),
        )
        try:
            result = self._engine.run(case)
        except unittest.SkipTest as skip:
            return reports.skipped(item, str(skip))
        except (LaunchError, UsageError) as error:
            return reports.not_run(item, error)
        reports.forward_warnings(item, result)
        if result.end_session:
            item.session.shouldstop = result.end_session
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
                text = reports.failure_text(item.nodeid, result, self._spec, item)
                return reports.failed(item, text, result.duration_s, properties)

    def _body_of(self, item: pytest.Item, nextitem: pytest.Item | None, *, strict_calls: bool) -> CaseBody:
        if isinstance(item, RankItem):
            return item.body(strict_calls=strict_calls)
        content = PytestCase(item.nodeid, nextitem.nodeid if self._rank_info and nextitem else None)
        return CaseBody(
            "pytest",
            PYTEST_CASES.to_wire(content).decode(),
            only_test=item.nodeid,
            strict_calls=strict_calls,
            may_change=self._pool_keeps,
        )

    def runs_on_ranks(self, item: pytest.Item) -> bool:
        """Return whether the item runs on ranks, processes or threads, if it runs at all."""
        if isinstance(item, RankItem):
            return True
        if (marker := item_marker(item)) is not None:
            return marker.is_for(self._spec.backend)
        return is_multi_process(item) or starts_ranks(function_of(item), item.path)

    def skips_by_mark(self, item: pytest.Item) -> bool:
        """Return whether the item will certainly skip; False if that is unknown."""
        cls = getattr(item, "cls", None)
        try:
            function = function_of(item)
            if reports.skip_mark(item) is not None or any(
                getattr(marked, "__unittest_skip__", False) for marked in (function, cls)
            ):
                return True
            size: object = None
            if is_marked(item):
                size = world_size(item)
            elif is_multi_process(item):
                # A property has its value only on an instance.
                size = getattr(cls, "world_size", None)
            if not isinstance(size, int):
                return False
            missing = self._missing(function, size)
        except Exception:
            # The error is reported when the item runs.
            return False
        return bool(missing) and self._session.promise_error(item.nodeid, str(missing), size) is None

    def _missing(self, function: Any, size: int, nodes: int = 1) -> str | None:
        """Return what the machine lacks for a test, by its spec or its requirements; None if nothing is known."""
        unmet = function and unmet_requirement(function, os.environ | {"WORLD_SIZE": str(size)})
        return missing_need(self._spec, size, nodes) or unmet

    def _isolation_of(self, item: pytest.Item) -> Isolation:
        """Return how the ranks of the item are made: by its marker or its class, else by the target."""
        marker = item.stash.get(MARKER_KEY, None)
        own: object = marker.isolation if marker is not None else getattr(getattr(item, "cls", None), "isolation", "")
        # A class with a wrong attribute reports it when its test runs.
        return isolation_named(str(own) if own in isolation_names() else self._spec.isolation)

    def _size_of(self, item: pytest.Item) -> int:
        """Return the number of ranks of an item, if its marker or class states it; else the largest of the target."""
        size: object = world_size(item) if is_marked(item) else getattr(getattr(item, "cls", None), "world_size", None)
        return size if type(size) is int and size > 0 else max(self._spec.world_sizes)

    def _world_of(self, item: pytest.Item) -> tuple[str, int, Isolation]:
        """Return name, world size and isolation of a case. A unittest class states its size only when it starts."""
        return item.nodeid, world_size(item) if is_marked(item) else MAX_WORLD_SIZE, self._isolation_of(item)

    def shared_ranks(self, item: pytest.Item) -> str:
        """Return what the item shares with other cases: a name for the worker pool or process; "" for nothing."""
        is_ours = MARKER_KEY in item.stash or is_multi_process(item)
        if not is_ours or self._isolation_of(item).reuse is Reuse.NOTHING:
            return ""
        return self._pool_of(item) or (item.parent.nodeid if item.parent is not None else "")

    def _pool_of(self, item: pytest.Item) -> str:
        """Return the name of the worker pool or process that runs a marked item; "" for ranks of its own."""
        marker = item.stash.get(MARKER_KEY, None)
        if marker is None or (reuse := self._isolation_of(item).reuse) is Reuse.NOTHING:
            return ""
        assert item.parent is not None
        pool = item.parent.nodeid if marker.init else f"{item.parent.nodeid} without a group"
        # Each case has new threads; cases of the same world size share the process.
        return pool if reuse is Reuse.RANKS else f"{pool}, {world_size(item)} threads"

    def _end_pool(self, item: pytest.Item) -> None:
        error = None
        try:
            trouble = self._engine.end_pool()
        except LaunchError as launch_error:
            trouble, error = str(launch_error), launch_error
        if trouble:
            report = reports.failed_teardown(item, f"{item.nodeid}: {trouble}", error)
            item.ihook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Put the result of the ranks into the report of a unittest case."""
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, DistTestingError):
            reports.add_error(report, call.excinfo.value)
        if call.when == "call":
            reports.add_result(report, call.excinfo, self._spec, self._outputs)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Replace the text of a report by a pointer to the end of the log, where the text is printed."""
        if (text := getattr(report, "dist_failure", None)) is not None:
            reports.point_to_end(report, text)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, object] | None:
        """Show a try that failed, and was not the last, as pytest-rerunfailures does."""
        return (RERUN, "R", ("RERUN", {"yellow": True})) if report.outcome == RERUN else None

    def pytest_unconfigure(self) -> None:
        """Close the engine, then print the failures at the end of the log."""
        self._engine.close()
        self._events.end()
