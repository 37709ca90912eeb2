"""The engine of a run: takes cases, makes worlds, returns results.

    case -> start() -> ranks running -> finish() -> outcomes -> verdict -> CaseResult

Two front ends use it: pytest runs a case in one call; a unittest class starts it in `setUp` and finishes it in the test
method.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from dist_testing.core.engine.case_events import CaseEvents
from dist_testing.core.engine.hooks import CaseStart, HeldResource, ResourceWish, WorldResource
from dist_testing.core.engine.needs import check_add_ons
from dist_testing.core.engine.report import failure_report
from dist_testing.core.engine.run_directory import Launchers, RunDirectory
from dist_testing.core.engine.running_case import RunningCase, interrupted, judged, with_operation
from dist_testing.core.engine.running_world import RunningWorld, check_world_size, release, start_world
from dist_testing.core.events.event import EventStream
from dist_testing.core.ground.add_ons import AddOn, add_on_named, add_ons, blaming
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.errors import DistTestingError, LaunchError, OutOfTimeError, UsageError
from dist_testing.core.ground.outcomes import Cause, Kind, Status, verdict
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK, Isolation, check_isolation, isolation_named
from dist_testing.core.launch.launcher import Launcher, RunContext
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.process.refusal import refusal
from dist_testing.core.rank.bootstrap import RankContext

# Limit for the ranks of a worker pool to destroy their groups and end. Seconds.
_POOL_END_LIMIT_S = 30.0
# Limit of a case in the debugger. Groups and stores need a finite limit. Seconds.
_DEBUG_LIMIT_S = 7 * 24 * 3600.0
# With less time no rank gets as far as its test, and a good test would look like one that hangs. Seconds.
_LEAST_CASE_S = 0.1


class Engine:
    """Runs cases, each on fresh ranks or on a worker pool. Its worlds run one after the other.

    Attributes:
        spec: What the target asks for.
        budget: The time that all cases share.
        cases_after: Number of cases after the next one. They share the budget with it.
        neighbours: Number of worlds that share the CPUs of this run, with that of the current case.
        waits_for_resources: Whether a world waits for resources that others have, such as GPUs; else it does not start.
        debug_rank: The rank that gets the terminal in every case; None for none.
        events: Takes every event of the run. The engine reads live output only if a sink wants `RankOutput`.
        log_line: Takes a line for the log, such as why a case waits.
    """

    def __init__(
        self,
        spec: Spec,
        budget: Budget,
        context: RankContext,
        loader: Loader,
        *,
        may_fork_runner: bool = True,
        keeps_state: bool = False,
    ) -> None:
        """Make an engine. It starts no process yet.

        `loader` finds the tests again in a fresh interpreter. Without `may_fork_runner` each rank comes from one. With
        `keeps_state` no forked rank does: this process is forked although it has threads.
        """
        self.spec = spec
        self.budget = budget
        self.cases_after = 0
        self.neighbours = 1
        self.waits_for_resources = True
        self.debug_rank: int | None = None
        self.events = EventStream()
        self.log_line: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
        self._launchers = Launchers(
            RunContext(
                context,
                loader,
                may_fork_runner=may_fork_runner,
                keeps_state=keeps_state,
                emit=lambda event: self.events.emit(event),
            )
        )
        self._pool: RunningWorld | None = None
        self._worlds = 0
        # Those of add-ons, by name.
        self._resources: dict[str, WorldResource] = {}

    def prepare(self, forks: int = 0) -> tuple[Launcher, RunDirectory]:
        """Make the launcher of the target's isolation and the run's folder now, while this process may still be forked.

        `forks` is the number of ranks that the run will fork, as far as the front end knows; 0 if it does not.

        Raises:
            LaunchError: If the machine lacks the resources.
            UsageError: If the isolation does not exist.
        """
        isolation = self.isolation_named(self.spec.isolation)
        self._launchers.forks = max(self._launchers.forks, forks)
        try:
            return self._launchers.of(isolation), self._launchers.directory
        except OSError as error:
            raise _no_room("the run", error) from error

    def isolation_named(self, name: str) -> Isolation:
        """Return the isolation of this name. Raise UsageError if there is none."""
        return isolation_named(name)

    def another(self) -> Engine:
        """Return another engine of the same run, whose worlds can run beside those of this one."""
        other = copy.copy(self)
        other._launchers = self._launchers.others(lambda event: other.events.emit(event))
        return other

    def run(self, case: Case, running: RunningCase | None = None) -> CaseResult:
        """Start a case, unless it is running, and finish it.

        Try once more if no rank could start, because no test code has run then.
        """
        result = self.finish(running or self.start(case))
        never_began = all(outcome.kind is Kind.NEVER_STARTED for outcome in result.outcomes)
        if result.verdict.cause is Cause.INFRASTRUCTURE and never_began:
            first = result.verdict.reason
            return dataclasses.replace(self.finish(self.start(case)), retried=first)
        return result

    def start(self, case: Case) -> RunningCase:
        """Ask for the ranks of a case, and return without waiting for them.

        Raises:
            DistTestingError: If the ranks of another worker pool did not end well.
            LaunchError: If the ranks cannot be started.
            UsageError: If the world is too large.
        """
        events = CaseEvents(self.events, case)
        with events.ending_on_error():
            return self._start(case, events)

    def _start(self, case: Case, events: CaseEvents) -> RunningCase:
        check_world_size(case.name, case.world_size)
        isolation = self.isolation_named(case.isolation)
        check_isolation(case.name, self.spec.backend, isolation)
        check_add_ons(case, self.spec)
        taking_part = [add_on for add_on in add_ons() if add_on.wanted(case, self.spec)]
        for add_on in taking_part:
            if add_on.check:
                with blaming(add_on.name, "its check"):
                    add_on.load("check")(case, self.spec)
            if add_on.watcher:
                # Imported while no rank runs: a signal to the runner must find it waiting for its ranks.
                add_on.load("watcher")
        _check_expected_exits(case, isolation)
        if self.debug_rank is not None:
            case = dataclasses.replace(case, debug_rank=self.debug_rank)
        limit_s = self.limit_s(case)
        started_s = time.monotonic()
        world, self._pool = self._pool, None
        if world is not None and not world.fits(case):
            if trouble := self._end(world):
                raise DistTestingError(f"{case.name}: not run: {trouble}")
            world = None
        is_first = world is None
        if world is None:
            world, limit_s = self._new_world(case, isolation, limit_s, taking_part)
        with self._closing_if_over(world):
            events.begun_on(world, is_new=is_first)
            world.supervisor.begin_case(
                CaseStart(case, time.monotonic(), bool(case.pool)),
                limit_s,
                latest_s=math.inf if case.debug_rank is not None else self.budget.end_s,
                body=None if is_first else case.body,
                taking_part=taking_part,
            )
        return RunningCase(case, world, started_s, limit_s, events, taking_part)

    def finish(self, running: RunningCase) -> CaseResult:
        """Wait for the end of a case, at most until its deadline, and judge it. An add-on may run it again.

        Raises:
            LaunchError: If the ranks could not be started or killed.
        """
        result = self._finish_once(running)
        latest_s = self.budget.latest_rerun_s(result.duration_s, cases_after=self.cases_after)

        def again(case: Case) -> CaseResult:
            if time.monotonic() > latest_s:
                raise OutOfTimeError(f"{case.name}: not run again: its part of the target's time is over.")
            return self._finish_once(self.start(case))

        for add_on in running.add_ons:
            if add_on.rerun:
                with blaming(add_on.name, "its rerun"):
                    result = add_on.load("rerun")(result, again)
        return result

    def _finish_once(self, running: RunningCase) -> CaseResult:
        world = running.world
        supervisor = world.supervisor
        with running.events.ending_on_error():
            with self._closing_if_over(world), running.events.watching():
                try:
                    supervisor.wait_case()
                except BaseException as error:
                    if not isinstance(error, Exception):
                        # A signal raises it: Ctrl-C, or the time limit of a plugin. A second Ctrl-C ends this report.
                        self._interrupt(running)
                    raise
                outcomes = tuple(
                    with_operation(record.outcome(), supervisor.stacks.get(record.rank, ""))
                    for record in supervisor.records
                )
                if owner := supervisor.in_process_of:
                    blame = add_on_named(owner, running.case.name).load("blame")
                    outcomes = blame(outcomes, supervisor.directory, world.log_tail(0))
                left = world.check()
            result = judged(running, self.spec, outcomes, left)
        if not supervisor.is_over:
            # Its ranks have passed, whatever else is wrong with the case.
            self._pool = world
        else:
            # The report of a failed case needs the logs. Folders with what its test has written could fill the disk.
            is_failed = result.verdict.status is Status.FAILED
            for path in supervisor.directory.glob("*/") if is_failed else [supervisor.directory]:
                shutil.rmtree(path, ignore_errors=True)
        running.events.judged(result)
        return result

    def interrupt(self, running: RunningCase) -> None:
        """Kill the ranks of a case that the user stops, and tell where each one was."""
        with self._closing_if_over(running.world), running.events.watching():
            self._interrupt(running)
        running.events.ended_early("the run was stopped")

    def _interrupt(self, running: RunningCase) -> None:
        with contextlib.suppress(LaunchError):
            self.log_line(failure_report(interrupted(running), target=self.spec.target))

    def limit_s(self, case: Case) -> float:
        """Return the limit of a case that begins now, in seconds. Raise UsageError if no time is left."""
        limit_s = self._limit_s(case)
        if limit_s < min(_LEAST_CASE_S, case.timeout_s):
            raise UsageError(
                f"{case.name}: not run, because the target's time was over: {limit_s:.1f} s were left for it.\n"
                "The cases before it have used the time; those that hang use the most.\n"
                "Fix them, or give the target a larger timeout or size, or more shards. This test is not to blame."
            )
        return limit_s

    def abandon(self, running: RunningCase) -> None:
        """Kill the ranks of a case whose result is no longer needed."""
        with self._closing_if_over(running.world):
            running.world.supervisor.abort()
        running.events.ended_early("the test ended before it waited for its ranks")

    def end_pool(self) -> str:
        """End the current worker pool, if there is one. Return why its ranks did not end well; "" if they did.

        Raises:
            LaunchError: If a rank could not be killed, or one of its resources is lost.
        """
        world, self._pool = self._pool, None
        return self._end(world) if world is not None else ""

    def close(self) -> None:
        """End all processes of the run and remove its folder."""
        world, self._pool = self._pool, None
        try:
            if world is not None:
                with contextlib.suppress(LaunchError), self._closing_if_over(world):
                    world.supervisor.abort()
        finally:
            self._launchers.end()

    def _limit_s(self, case: Case) -> float:
        if case.debug_rank is not None:
            return _DEBUG_LIMIT_S
        return self.budget.limit_s(case.timeout_s, cases_after=self.cases_after)

    def _new_world(
        self, case: Case, isolation: Isolation, limit_s: float, taking_part: Sequence[AddOn]
    ) -> tuple[RunningWorld, float]:
        """Return a new world, and the limit of its first case after the wait for resources, in seconds."""
        self._worlds += 1
        try:
            launcher, directory = self._launchers.of(isolation), self._launchers.directory
            wish = ResourceWish(
                case,
                self.spec,
                isolation,
                limit_s if self.waits_for_resources else 0.0,
                directory.path / str(self._worlds),
                lambda line: self.log_line(f"dist_testing: {case.name}: {line}"),
            )
            held = self._acquire(wish, taking_part)
        except OSError as error:
            raise _no_room(case.name, error) from error
        if held:
            # The wait has used the run's budget, but not the case's own limit.
            limit_s = self._limit_s(case)
        try:
            world = start_world(
                launcher,
                wish,
                self._worlds,
                directory,
                limit_s,
                held,
                neighbours=self.neighbours,
                taking_part=taking_part,
            )
            world.supervisor.log_line = wish.log_line
            return world, limit_s
        except OSError as error:
            raise _no_room(case.name, error) from error
        except BaseException:
            # It can be a signal, as in `_finish_once`: the launcher may have begun a world that has no owner.
            self._launchers.close()
            raise

    def _acquire(self, wish: ResourceWish, taking_part: Sequence[AddOn]) -> list[tuple[str, HeldResource]]:
        """Acquire the resources of a world, in the order of the add-ons."""
        acquired: list[tuple[str, HeldResource]] = []
        try:
            for add_on in taking_part:
                if not add_on.resource:
                    continue
                with blaming(add_on.name, "its resource"):
                    if add_on.name not in self._resources:
                        self._resources[add_on.name] = add_on.load("resource")()
                    held = self._resources[add_on.name].acquire(wish)
                if held is not None:
                    acquired.append((add_on.name, held))
        except BaseException:
            release(acquired, are_ranks_gone=True)
            raise
        return acquired

    def _end(self, world: RunningWorld) -> str:
        supervisor = world.supervisor
        with self._closing_if_over(world):
            supervisor.finish(_POOL_END_LIMIT_S)
            outcomes = [record.outcome() for record in supervisor.records]
            left = world.check()
        for loss in (held.loss for _, held in world.held):
            if loss is not None:
                raise loss
        result = verdict(outcomes, leaked=supervisor.leaked, left=left)
        if result.status is not Status.FAILED:
            shutil.rmtree(supervisor.directory, ignore_errors=True)
            return ""
        details = "\n".join(outcome.text for outcome in outcomes if outcome.text)
        return f"the ranks of the pool {world.first.pool} did not end well: {result.reason}\n{details}".rstrip()

    @contextlib.contextmanager
    def _closing_if_over(self, world: RunningWorld) -> Iterator[None]:
        """Close the world after the block if its ranks are gone; after an exception, kill them and close it."""
        try:
            yield
        except LaunchError:
            world.close()
            self._launchers.close()
            raise
        except BaseException:
            with contextlib.suppress(LaunchError):
                world.supervisor.abort()
            world.close()
            raise
        if world.supervisor.is_over:
            world.close()


def _no_room(subject: str, error: OSError) -> LaunchError:
    return LaunchError(f"{subject}: no ranks could be started: {refusal(error)}")


def check_expected_ranks(case: Case) -> None:
    """Raise UsageError if exits are expected of ranks that the world does not have."""
    if any(rank >= case.world_size for rank in case.expected_exits):
        raise UsageError(
            f"{case.name}: expected_exits = {case.expected_exits!r} in a world of {case.world_size} ranks.\n"
            "It names a rank that does not exist, so no exit could meet the expectation.\n"
            "Name ranks of the world, from 0."
        )


def _check_expected_exits(case: Case, isolation: Isolation) -> None:
    if case.expected_exits and not isolation.has_exit_codes:
        raise UsageError(
            f'{case.name}: expected_exits = {case.expected_exits!r} with isolation "{isolation.name}".\n'
            "The ranks are threads of one process, so a rank has no exit code of its own.\n"
            f'Set isolation="{FORK.name}", with a backend that supports it.'
        )
    check_expected_ranks(case)
