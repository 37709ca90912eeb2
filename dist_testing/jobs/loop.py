"""The loop of a session whose worlds run side by side. It replaces pytest's.

    runner  ---- fork ---->  sub-runner 0  ---- fork ---->  fork server  ---->  ranks of one world
            ---- fork ---->  sub-runner 1  ---- fork ---->  fork server  ---->  ranks of another world
            <-- messages --

Each sub-runner is the whole runner as it was after the collection, and runs one case at a time. It claims the next
unit of items when it has ended one. The runner runs the tests that are not distributed. It passes on all reports in the
order of the collection, so that no plugin sees a difference.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import tidied
from dist_testing.core.engine.run_directory import remove_dead_runs
from dist_testing.core.engine.stack_dumps import collect_stacks
from dist_testing.core.events.event import event_of
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.process.lifetime import become_subreaper, die_with_parent, fork, watch_child
from dist_testing.core.process.refusal import refusal
from dist_testing.core.process.stacks import STACKS_SIGNAL
from dist_testing.core.pytest import reports
from dist_testing.core.pytest.marked_items import forks_of
from dist_testing.core.pytest.options import JOBS_OPTION
from dist_testing.core.pytest.session_events import SessionEvents
from dist_testing.jobs.claims import Claims
from dist_testing.jobs.messages import (
    AboutItem,
    Began,
    Done,
    Ended,
    Finished,
    Happened,
    Message,
    Printed,
    Raised,
    Reported,
    Said,
    Unable,
    Warned,
)
from dist_testing.jobs.peer import Peer, wait_for_orphaned
from dist_testing.jobs.plan import Facts, Plan, plan_of
from dist_testing.jobs.records import Record
from dist_testing.jobs.serial import report_of, warning_of
from dist_testing.jobs.sub_runner import SubRunner

# Seconds for the sub-runners to end after a signal: their fork servers have limits of their own.
_STOP_LIMIT_S = 25.0
# Seconds for their stacks.
_STACKS_LIMIT_S = 1.0
# The kernel allows at most 24 days for one wait. Seconds.
_LONGEST_WAIT_S = 24 * 3600.0
_KILLED = (
    "A sub-runner is a fork of the runner that runs cases. Most likely the kernel killed it for lack of memory, or a "
    "test killed its parent process or ended it."
)


class SideBySide:
    """The plugin with the loop; `plan` decides whether there is anything for it to do."""

    def __init__(self, config: pytest.Config, asked: int, engine: Engine, events: SessionEvents, facts: Facts) -> None:
        self._config = config
        self._asked = asked
        self._engine = engine
        self._events = events
        self._facts = facts
        self._plan = Plan()
        self._unit_of: dict[int, int] = {}
        self._records: dict[int, Record] = {}
        self._peers: list[Peer] = []
        self._claims: Claims | None = None
        self._items: list[pytest.Item] = []

    def plan(self, items: Sequence[pytest.Item]) -> bool:
        """Divide the session, and return whether its worlds run side by side. Says why if fewer do than were asked."""
        self._plan, why = plan_of(items, self._asked, self._engine.spec, self._facts)
        if why:
            self._config.get_terminal_writer().line(
                f"dist_testing: {JOBS_OPTION}={self._asked}: {self._plan.jobs} world(s) at a time, because {why}"
            )
        return self._plan.jobs > 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the session; leave it to pytest if there is nothing to run side by side."""
        failed = session.testsfailed and not session.config.option.continue_on_collection_errors
        if self._plan.jobs == 1 or failed or session.config.option.collectonly:
            return None
        self._items = session.items
        self._unit_of = {place: number for number, unit in enumerate(self._plan.units) for place in unit}
        self._records = {place: Record() for place in self._unit_of}
        self._claims = Claims(len(self._plan.units))
        try:
            self._start(session)
            self._run(session)
            self._finish()
        except BaseException as error:
            # After -x, later results are discarded. After Ctrl-C, all that is known is shown.
            is_discarded = not isinstance(error, KeyboardInterrupt) or isinstance(error, session.Interrupted)
            self._stop(is_discarded=is_discarded)
            raise
        finally:
            self._kill()
            self._claims.close()
        return True

    def _start(self, session: pytest.Session) -> None:
        become_subreaper()
        factory: Any = getattr(self._config, "_tmp_path_factory", None)
        if factory is not None:
            # Each process would remove and make a folder that the user has named.
            factory.getbasetemp()
        for stream in (sys.stdout, sys.stderr, self._config.get_terminal_writer()):
            stream.flush()
        parent = os.getpid()
        items = [session.items[place] for place in self._unit_of]
        forks = forks_of(items, self._facts.isolation) // self._plan.jobs
        for number in range(self._plan.jobs):
            try:
                ours, theirs = socket.socketpair()
                stacks, their_stacks = os.pipe()
                pid = fork()
                if pid == 0:
                    ours.close()
                    os.close(stacks)
                    self._be_sub_runner(session, number, theirs, their_stacks, parent, forks)
                theirs.close()
                os.close(their_stacks)
                ours.setblocking(False)
                self._peers.append(Peer(number, pid, watch_child(pid), ours, stacks))
            except OSError as error:
                which = f"sub-runner {number + 1} of {self._plan.jobs}"
                raise pytest.UsageError(f"{JOBS_OPTION}: {which} could not be started: {refusal(error)}") from error

    def _be_sub_runner(
        self, session: pytest.Session, number: int, channel: socket.socket, stacks: int, parent: int, forks: int
    ) -> NoReturn:
        try:
            die_with_parent(parent)
            # faulthandler writes also while C code holds the interpreter's lock.
            faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
            for peer in self._peers:
                peer.close()
            self._engine.neighbours = self._plan.jobs
            assert self._claims is not None
            sub_runner = SubRunner(
                number,
                channel,
                session,
                self._plan.units,
                self._claims,
                self._engine,
                shows_output=self._events.shows_output,
            )
            sub_runner.run(forks)
        finally:
            os._exit(1)

    def _run(self, session: pytest.Session) -> None:
        items = session.items
        # A test here goes on with the fixtures of the test before it here.
        here = [item for place, item in enumerate(items) if place not in self._unit_of]
        next_here = dict(itertools.pairwise(here))
        for place, item in enumerate(items):
            if place in self._unit_of:
                self._pass_on(place, item)
            else:
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=next_here.get(item))
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def _pass_on(self, place: int, item: pytest.Item) -> None:
        """Pass on all that comes about an item, until its end."""
        record = self._records[place]
        while not record.is_done:
            if record.waiting:
                self._tell(record, item, record.waiting.popleft())
            elif self._is_expected(place):
                self._wait()
            elif not record.waiting:
                self._give_up(place, record, item)

    def _is_expected(self, place: int) -> bool:
        """Return whether a sub-runner runs the item, or can still claim it."""
        assert self._claims is not None
        owner = self._claims.owner(self._unit_of[place])
        return any(peer.is_alive for peer in self._peers if owner in (None, peer.number))

    def _wait(self, limit_s: float | None = None) -> None:
        """Take what the sub-runners send, and wait for it, at most `limit_s` seconds."""
        poller = select.poll()
        peers = {}
        for peer in self._peers:
            if peer.is_alive:
                for fd in (peer.channel.fileno(), peer.pidfd):
                    poller.register(fd, select.POLLIN)
                    peers[fd] = peer
        late_s = self._engine.budget.late_s - time.monotonic()
        if limit_s is None and late_s <= 0:
            self._end_late()
        wait_s = limit_s if limit_s is not None else None if late_s <= 0 else min(late_s, _LONGEST_WAIT_S)
        for fd, _ in poller.poll(None if wait_s is None else 1000 * wait_s):
            peer = peers[fd]
            is_over = fd == peer.pidfd
            if is_over:
                peer.reap()
            for message in peer.messages():
                self._take(peer, message)

    def _end_late(self) -> None:
        """Kill the sub-runners that have not ended at the end of the target's time, with their stacks."""
        late = [peer for peer in self._peers if peer.is_alive and not peer.trouble]
        if not late:
            return

        def ask() -> None:
            for peer in late:
                peer.signal(STACKS_SIGNAL)

        stacks = collect_stacks({peer.number: peer.stacks_fd for peer in late}, ask, _STACKS_LIMIT_S)
        for peer in late:
            text = stacks[peer.number]
            peer.trouble = (
                "the target's time was over.\n"
                "Code of the test in the runner, such as setUp, hangs or is slow; the stacks show where. If it is "
                f"slow, give the target a larger size or timeout.\n\n{tidied(text) or text}"
            )
            peer.signal(signal.SIGKILL)

    def _take(self, peer: Peer, message: Message) -> None:
        match message:
            case Unable():
                raise pytest.UsageError(message.text)
            case Printed():
                # Live: not in its turn.
                name = self._items[message.item].nodeid.partition("::")[2]
                self._events.tell(f"[{name}, rank {message.rank}] {message.line}")
            case Finished():
                peer.is_reported = True
            case _:
                peer.last_item = message.item
                self._records[message.item].waiting.append(message)

    def _tell(self, record: Record, item: pytest.Item, message: AboutItem) -> None:
        """Pass a message on to the plugins or sinks that it is for."""
        match message:
            case Began():
                record.has_begun = True
                with self._events.at(message.at_s):
                    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            case Reported():
                with self._events.at(message.at_s):
                    item.ihook.pytest_runtest_logreport(report=report_of(self._config, message.report))
            case Warned():
                warning, place = warning_of(message)
                kwargs = {
                    "warning_message": warning,
                    "nodeid": item.nodeid,
                    "when": message.when,
                    "location": place,
                }
                item.ihook.pytest_warning_recorded.call_historic(kwargs=kwargs)
            case Happened():
                if (event := event_of(json.loads(message.event))) is not None:
                    self._events.stream.emit(event)
            case Said():
                self._events.tell(message.line)
            case Ended():
                record.has_ended = True
                with self._events.at(message.at_s):
                    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            case Done():
                record.is_done = True
                if message.stop:
                    item.session.shouldstop = message.stop
            case Raised(kind="exit"):
                raise pytest.exit.Exception(message.text, message.code)
            case Raised(kind="interrupt"):
                raise KeyboardInterrupt(message.text)
            case Raised():
                raise RuntimeError(f"a sub-runner has failed:\n{message.text}")

    def _give_up(self, place: int, record: Record, item: pytest.Item) -> None:
        """Report an item that no sub-runner will end."""
        assert self._claims is not None
        owner = self._claims.owner(self._unit_of[place])
        peer = None if owner is None else self._peers[owner]
        state = "it had begun" if record.has_begun else "it has not run"
        if peer is not None and peer.trouble:
            text = f"{item.nodeid}: {state}, and its sub-runner was killed: {peer.trouble}"
        else:
            why = "no sub-runner is left"
            if peer is not None:
                why = f"its sub-runner (pid {peer.pid}) ended before it: {peer.ended}"
            way_out = f"Look for an out-of-memory message of the kernel; run the test alone, or without {JOBS_OPTION}."
            text = f"{item.nodeid}: {state}, and {why}.\n{_KILLED}\n{way_out}"
        if peer is not None:
            peer.is_reported = True
        if not record.has_begun:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.ihook.pytest_runtest_logreport(report=reports.failed_outside(item, LaunchError(text), "call"))
        if not record.has_ended:
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        record.is_done = True

    def _finish(self) -> None:
        """Wait until all sub-runners have ended, and pass on what their last clean-up has reported."""
        while any(peer.is_alive for peer in self._peers):
            self._wait()
        for place, record in self._records.items():
            while record.waiting:
                self._tell(record, self._items[place], record.waiting.popleft())
        for peer in self._peers:
            if not peer.is_reported and peer.last_item is not None:
                item = self._items[peer.last_item]
                text = (
                    f"{item.nodeid}: its sub-runner (pid {peer.pid}) ended after it, before its clean-up: "
                    f"{peer.ended}.\n"
                    f"{_KILLED}\n"
                    f"Look for an out-of-memory message of the kernel; run the session without {JOBS_OPTION}."
                )
                report = reports.failed_outside(item, LaunchError(text), "teardown")
                item.ihook.pytest_runtest_logreport(report=report)

    def _stop(self, *, is_discarded: bool) -> None:
        """Have the sub-runners kill their ranks and end; pass on what they have done, unless it is to be discarded."""
        assert self._claims is not None
        self._claims.withdraw()
        for peer in self._peers:
            peer.signal(signal.SIGTERM)
        until_s = time.monotonic() + _STOP_LIMIT_S
        with contextlib.suppress(pytest.UsageError):
            while any(peer.is_alive for peer in self._peers) and (left_s := until_s - time.monotonic()) > 0:
                self._wait(left_s)
        if is_discarded:
            return
        for place, record in self._records.items():
            while record.waiting:
                message = record.waiting.popleft()
                if not isinstance(message, Raised):
                    self._tell(record, self._items[place], message)

    def _kill(self) -> None:
        """Kill the sub-runners that are left, and wait until nothing of them is."""
        has_died = False
        for peer in self._peers:
            if peer.is_alive:
                peer.signal(signal.SIGKILL)
                select.select([peer.pidfd], [], [])
                peer.reap()
            has_died |= peer.ended != "exit code 0"
            peer.close()
        if has_died:
            wait_for_orphaned()
            # A dead fork server has not removed the folder of its sub-runner.
            remove_dead_runs(os.environ)
