"""The option `--dist-jobs`: while pytest waits for the world of one test, the worlds of the next tests run beside it.

    items of the session:   reported | awaited | started ahead ... | not started
    worlds:                             ^^^^^^^^^^^^^^^^^^^^^^^^^^^ at most `jobs` run, each on an engine of its own

pytest takes the items in their order, as always. A test whose world has been started ahead only waits for the rest of
it. Worlds are started, and watched, only while the runner waits for the ranks of a test.
"""

from __future__ import annotations

import contextlib
import time
import unittest
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.rank_env import cpu_count
from dist_testing.core.engine.report import failure_report
from dist_testing.core.engine.running_case import RunningCase
from dist_testing.core.engine.supervisor import Supervisor
from dist_testing.core.events.event import Event, EventStream
from dist_testing.core.ground.add_ons import call_parts
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.procfs import free_bytes
from dist_testing.core.ground.spec import Spec, number_in
from dist_testing.core.pytest.marked_items import CASE_KEY, isolation_of
from dist_testing.core.pytest.options import JOBS_OPTION
from dist_testing.core.pytest.session_events import SessionEvents
from dist_testing.core.pytest.world_items import WorldItem
from dist_testing.core.session.existing_world import ExistingRank

if TYPE_CHECKING:
    from dist_testing.core.pytest.in_runner import RunnerPlugin

MAX_JOBS = 64
# The number of jobs that stands for "as many as the machine has room for".
AUTO = 0
# Memory of a fork server and of a rank, beside what they share with the runner. Bytes.
_JOB_BYTES = 60 << 20
_RANK_BYTES = 20 << 20
_FRESH_RANK_BYTES = 170 << 20
# Options that cannot be combined: name in the namespace, spelling, way out.
_INSTEAD = f"Leave it out: {JOBS_OPTION} imports torch once, and reports in the order of the collection."
_TERMINAL = f"One terminal serves one debugger: leave {JOBS_OPTION} out."
_REFUSED = (
    ("numprocesses", "-n (pytest-xdist)", _INSTEAD),
    ("tx", "--tx (pytest-xdist)", _INSTEAD),
    ("dist_debug_rank", "--dist-debug-rank", _TERMINAL),
    ("usepdb", "--pdb", _TERMINAL),
    ("trace", "--trace", _TERMINAL),
)
# Worlds per job that are over or run, and wait for their turn. Each keeps open files, and its output.
_MOST_AHEAD = 4
# After Ctrl-C, worlds are asked for this long where they are; later ones are only killed. Seconds.
_ASK_LIMIT_S = 5.0


def read_jobs(text: str, config: pytest.Config, rank_info: ExistingRank | None) -> int:
    """Return how many worlds the user wants side by side, from the option's text: from 1, or `AUTO`."""
    jobs = AUTO if text == "auto" else number_in(text)
    if jobs is None or jobs > MAX_JOBS or text == "0":
        raise UsageError(
            f"{JOBS_OPTION}={text}: expected a number from 1 to {MAX_JOBS}, or auto.\n"
            "It is the number of worlds that run side by side; 1 runs them one after the other.\n"
            f"Write {JOBS_OPTION}=4, for example, or leave it out."
        )
    if jobs == 1:
        return jobs
    if rank_info is not None:
        raise UsageError(
            f"{JOBS_OPTION}={text} in a process that is rank {rank_info.rank} of {rank_info.size} (RANK is set).\n"
            "torchrun has started the ranks of one world, and no other world can run beside it.\n"
            f"Leave {JOBS_OPTION} out, or run pytest without torchrun: the library starts the ranks."
        )
    for name, spelling, way_out in _REFUSED:
        # An option that is not given is None, False, 0 or an empty list. A worker of xdist has its controller's.
        if getattr(config.option, name, None) and not hasattr(config, "workerinput"):
            cause = "Both want to decide how the ranks of a test run."
            raise UsageError(f"{JOBS_OPTION}={text} with {spelling}.\n{cause}\n{way_out}")
    return jobs


def affordable_jobs(asked: int, spec: Spec, sizes: Sequence[int], *, fresh: bool) -> tuple[int, str]:
    """Return how many worlds run side by side, and why they are fewer than the user asked for; "" if they are not.

    `asked` is what the user wants: from 1, or `AUTO`. `sizes`, not empty, are the world sizes of the cases that can run
    side by side. With `fresh`, ranks are fresh interpreters.
    """
    largest = max(sizes)
    limits = [(asked or min(MAX_JOBS, max(1, cpu_count() // largest)), "")]
    each = _JOB_BYTES + largest * (_FRESH_RANK_BYTES if fresh else _RANK_BYTES)
    for _, room in call_parts("room", spec, largest):
        if room is not None:
            worlds, why, memory = room
            limits.append((max(1, worlds), why))
            each += memory
    free = free_bytes()
    why = f"{free >> 20} MiB of memory are free, and a world of {largest} ranks takes {each >> 20}"
    limits.append((max(1, free // each), why))
    jobs, why = min(limits, key=lambda limit: limit[0])
    return min(jobs, len(sizes)), why if asked else ""


class _HeldEvents(EventStream):
    """Keeps the events of a world that was started ahead, until its turn."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__()
        self._stream = stream
        self._held: list[Event] = []

    def wants(self, *kinds: type[Event]) -> bool:
        """Whether the stream of the session wants one of these kinds."""
        return self._stream.wants(*kinds)

    def emit(self, event: Event) -> None:
        """Keep an event."""
        self._held.append(event)

    def release(self) -> None:
        """Pass on all events, also those that come later: the turn of the world has come."""
        for event in self._held:
            self._stream.emit(event)
        self.emit = self._stream.emit  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A test whose world was started before its turn."""

    engine: Engine
    running: RunningCase
    events: _HeldEvents

    @property
    def supervisor(self) -> Supervisor:
        return self.running.world.supervisor


class LookAhead:
    """The plugin of `--dist-jobs`."""

    def __init__(
        self, config: pytest.Config, asked: int, runner: RunnerPlugin, engine: Engine, events: SessionEvents
    ) -> None:
        self._config = config
        self._asked = asked
        self._runner = runner
        self._events = events
        # The first is the engine of the session, which also runs what is not started ahead.
        self._engines = [engine]
        self._items: Sequence[pytest.Item] = ()
        self._places: dict[pytest.Item, int] = {}
        # In the order of the items.
        self._ahead: dict[pytest.Item, _Ahead] = {}
        # All worlds that run, or are over and not reported.
        self._worlds: list[Supervisor] = []
        self._own_s: dict[pytest.Item, float] = {}
        self._awaited: Engine | None = None

    def engines(self, items: Sequence[pytest.Item]) -> Sequence[Engine]:
        """Return the engines of the session, one for each world that can run at once; say why if they are few."""
        self._items = items
        self._places = {item: place for place, item in enumerate(items)}
        first = self._engines[0]
        able = list(filter(self._can_be_ahead, items))
        if self._config.option.setuponly or not able:
            return self._engines
        fresh = any(isolation_of(item).fresh_interpreter for item in able)
        sizes = [item.stash[CASE_KEY].world_size for item in able]
        jobs, why = affordable_jobs(self._asked, first.spec, sizes, fresh=fresh)
        if why:
            self._config.get_terminal_writer().line(
                f"dist_testing: {JOBS_OPTION}={self._asked}: {jobs} world(s) at a time, because {why}"
            )
        first.neighbours = jobs
        self._engines += [first.another() for _ in range(jobs - 1)]
        return self._engines

    def run(self, item: pytest.Item, case: Case) -> CaseResult:
        """Run a case whose turn has come, or wait for the rest of it. Keep other worlds running meanwhile."""
        ahead = self._ahead.pop(item, None)
        # All engines are free before a case whose ranks are for several cases: the session's engine keeps them.
        engine = ahead.engine if ahead is not None else self._free_engine() or self._engines[0]
        engine.cases_after = self._runner.cases_after.get(item.nodeid, 0)
        engine.events = self._events.stream
        if ahead is not None:
            running = ahead.running
            ahead.events.release()
        else:
            running = engine.start(case)
            self._watch(running)
        supervisor = running.world.supervisor
        if len(self._engines) > 1:
            supervisor.before_look = self._starter(item, supervisor)
        self._awaited = engine
        try:
            result = engine.run(case, running)
        finally:
            self._awaited = None
            self._worlds.remove(supervisor)
        if ahead is not None:
            self._own_s[item] = result.duration_s
        return result

    def _starter(self, item: pytest.Item, awaited: Supervisor) -> Callable[[], None]:
        """Return what starts the worlds of the tests after an item while the runner waits for its world."""
        place = self._places.get(item, len(self._items))
        goes_on = True

        def start() -> None:
            nonlocal goes_on
            while goes_on and awaited.is_running and not self._must_stop() and (engine := self._free_engine()):
                following = self._next_after(place)
                goes_on = following is not None and self._start(*following, engine)

        return start

    def _must_stop(self) -> bool:
        """Whether a failure that will end the session is already known, or too much waits for its turn."""
        has_failed = any(record.first_trouble_s is not None for world in self._worlds for record in world.records)
        return (has_failed and self._config.getoption("maxfail") == 1) or (
            len(self._ahead) >= _MOST_AHEAD * len(self._engines)
        )

    def _free_engine(self) -> Engine | None:
        """Return an engine without a world that runs; None if there is none. One that failed is not free."""
        busy = [self._awaited, *(ahead.engine for ahead in self._ahead.values() if not ahead.supervisor.is_over)]
        return next((engine for engine in self._engines if engine not in busy), None)

    def _next_after(self, place: int) -> tuple[pytest.Item, Case] | None:
        """Return the next test that can be started ahead; None if another one comes first, which must wait."""
        last = max((self._places[item] for item in self._ahead), default=place)
        for following in range(last + 1, len(self._items)):
            item = self._items[following]
            if self._places.get(item) != following or not self._can_be_ahead(item):
                # Another plugin has changed the session, or the runner has to run something first.
                return None
            if (case := self._case_ahead(item)) is not None:
                return item, case
        return None

    def _can_be_ahead(self, item: pytest.Item) -> bool:
        return isinstance(item, WorldItem) and not self._runner.shared_ranks(item)

    def _case_ahead(self, item: pytest.Item) -> Case | None:
        """Return the case of a test; None if it skips, or fails without a world."""
        is_run = all(mark.kwargs.get("run") is not False for mark in item.iter_markers("xfail"))
        with contextlib.suppress(DistTestingError, unittest.SkipTest):
            return self._runner.case_of(item) if is_run and not self._runner.skips_by_mark(item) else None
        return None

    def _start(self, item: pytest.Item, case: Case, engine: Engine) -> bool:
        """Start the world of a test ahead. If it cannot start now, return False: it starts in its turn, or fails."""
        events = _HeldEvents(self._events.stream)
        lines: list[str] = []
        engine.cases_after = self._runner.cases_after[item.nodeid]
        engine.events = events
        engine.log_line, log_line = lines.append, engine.log_line
        engine.waits_for_resources = False
        try:
            running = engine.start(case)
        except DistTestingError:
            return False
        finally:
            engine.log_line, engine.waits_for_resources = log_line, True
        for line in lines:
            log_line(line)
        self._ahead[item] = _Ahead(engine, running, events)
        self._watch(running)
        return True

    def _watch(self, running: RunningCase) -> None:
        self._worlds.append(running.world.supervisor)
        running.world.supervisor.beside = self._worlds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Cancel the worlds of tests whose turn is over: they were skipped or removed after their world had started."""
        place = self._places.get(item, len(self._items))
        self._cancel([one for one in self._ahead if self._places[one] < place])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Report the own time of a test that was started ahead, not how long the runner has waited for it."""
        report = yield
        if call.when == "call" and item in self._own_s:
            report.duration = self._own_s.pop(item)
        return report

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """After Ctrl-C or a signal, tell where each world was."""
        if not isinstance(excinfo.value, KeyboardInterrupt) or isinstance(excinfo.value, pytest.Session.Interrupted):
            return
        ask_until_s = time.monotonic() + _ASK_LIMIT_S
        while self._ahead and time.monotonic() < ask_until_s:
            item = next(iter(self._ahead))
            ahead = self._ahead.pop(item)
            self._events.pytest_runtest_logstart(item.nodeid)
            ahead.events.release()
            if ahead.supervisor.is_over:
                result = ahead.engine.finish(ahead.running)
                if result.verdict.status is Status.FAILED:
                    ahead.engine.log_line(failure_report(result, target=ahead.engine.spec.target))
            else:
                ahead.engine.interrupt(ahead.running)
            self._worlds.remove(ahead.supervisor)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Cancel the worlds whose turn does not come any more, such as after -x."""
        self._cancel(list(self._ahead))

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self) -> None:
        """Close the engines, except the session's own."""
        with contextlib.ExitStack() as whatever_happens:
            for engine in self._engines[1:]:
                whatever_happens.callback(engine.close)

    def _cancel(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            ahead = self._ahead.pop(item)
            self._worlds.remove(ahead.supervisor)
            # The next case of the engine tells what is wrong with it.
            with contextlib.suppress(DistTestingError):
                ahead.engine.abandon(ahead.running)
