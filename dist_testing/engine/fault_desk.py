"""Carries out the faults that the ranks of a world ask for, and answers when each has happened.

A request is checked as if a stranger had sent it: it may name only ranks and nodes of the rank's own world.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dist_testing.engine.fault_plans import PlannedRequests, Request
from dist_testing.engine.hang_watch import HangWatch
from dist_testing.engine.rank_record import RankRecord
from dist_testing.events.event import fault_in_words
from dist_testing.launch.launcher import Launcher
from dist_testing.nodes.links import Link, LinkRule
from dist_testing.process.link_messages import UNASKED, LinksChanged
from dist_testing.process.rank_messages import FaultDone, LinkFault, SignalFault

_SIGNALS = {
    "kill": signal.SIGKILL,
    "power off": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "cont": signal.SIGCONT,
}
# The kernel tells no process that another one stands still or goes on, so the runner looks. Seconds between two looks,
# and until it gives up: a rank that is stuck in the kernel stops only afterwards.
_LOOK_S = 0.005
_SIGNAL_LIMIT_S = 10.0
# The report of a failed case names at most this many faults.
_MAX_NOTES = 20


@runtime_checkable
class LinkLauncher(Protocol):
    """A launcher whose worlds have links between nodes."""

    def change_links(self, world: int, number: int, links: Sequence[Link], rule: LinkRule) -> None:
        """Give links of a world a rule. The event `LinksChanged` with this number answers."""


@dataclass(slots=True)
class _Pending:
    """A request whose fault has not happened yet. `asker` is None for one of the plan."""

    asker: RankRecord | None
    request: Request
    number: int
    begun_s: float


class FaultDesk:
    """Carries out the faults of one world.

    Attributes:
        next_s: When to look at the ranks again, on the monotonic clock.
        on_happened: Called for each fault that has happened, with the rank that asked (None: the plan), the request,
            and when it was begun and had happened; None if no listener wants to know.
    """

    def __init__(self, launcher: Launcher, world: int, records: Sequence[RankRecord], hang_watch: HangWatch | None):
        """Make the desk of a world."""
        self.next_s = math.inf
        self.on_happened: Callable[[int | None, Request, float, float], None] | None = None
        self._launcher = launcher
        self._world = world
        self._records = records
        self._hang_watch = hang_watch
        self._pending: list[_Pending] = []
        self._number = 0
        self._notes: list[str] = []
        self._count = 0
        self._began_s = 0.0
        self._keeps_ranks = False
        self._plan: deque[PlannedRequests] = deque()
        self._next_parts: deque[Request] = deque()
        self._refused: list[str] = []
        self._plan_s = math.inf

    def begin_case(self, now_s: float, *, keeps_ranks: bool, plan: Sequence[PlannedRequests] = ()) -> None:
        """Forget the faults of the last case. `keeps_ranks` if the ranks are for further cases, too."""
        self._plan, self._next_parts, self._refused = deque(plan), deque(), []
        self._plan_s = math.inf
        if plan and self._hang_watch is not None:
            # A rank may wait for a fault.
            self._hang_watch.trust_no_wait()
        self._keeps_ranks = keeps_ranks
        self._notes, self._count, self._began_s = [], 0, now_s
        self._pending = []
        self.next_s = math.inf

    def missed(self) -> list[str]:
        """Return the faults of the plan that have not happened, each with why."""
        is_inside = self._next_parts or any(pending.asker is None for pending in self._pending)
        during = ["the case ended during a fault"] if is_inside else []
        return [*self._refused, *during, *(f"{planned.text}: the case ended before" for planned in self._plan)]

    def notes(self) -> list[str]:
        """Return the faults of this case, one line each, for the report."""
        further = self._count - len(self._notes)
        return [*self._notes, *([f"{further} further faults"] if further else [])]

    def look(self, now_s: float, *, is_running: bool) -> None:
        """Begin what the ranks have asked for, and answer requests whose faults have happened."""
        for record in self._records:
            requests, record.fault_requests = record.fault_requests, []
            for request in requests:
                if refusal := self._refusal(request, is_running=is_running):
                    self._answer(record, request, refusal)
                else:
                    self._begin(record, request, now_s)
        if is_running:
            self._follow_plan(now_s)
        still = []
        for pending in self._pending:
            if isinstance(pending.request, LinkFault):
                still.append(pending)
            elif self._has_happened(pending.request):
                for rank in pending.request.ranks:
                    self._records[rank].is_stopped_on_purpose = pending.request.action == "stop"
                self._tell(pending, now_s)
                self._answer(pending.asker, pending.request)
            elif now_s >= pending.begun_s + _SIGNAL_LIMIT_S:
                self._answer(pending.asker, pending.request, _stuck(pending.request))
            else:
                still.append(pending)
        self._pending = still
        self.next_s = self._next_look_s(now_s)

    def _next_look_s(self, now_s: float) -> float:
        if any(isinstance(pending.request, SignalFault) for pending in self._pending):
            return now_s + _LOOK_S
        if any(pending.asker is None for pending in self._pending) or not (self._plan or self._next_parts):
            # The launcher's answer ends the wait, if there is one.
            return math.inf
        # The begin of a test is no event of the runner.
        is_near = self._next_parts or self._plan_s == math.inf
        return now_s + _LOOK_S if is_near else self._plan_s + self._plan[0].after_s

    def _follow_plan(self, now_s: float) -> None:
        """Begin the next part of the plan, when its time has come and the part before it has happened."""
        if self._plan_s == math.inf and all(record.has_begun_test for record in self._records):
            self._plan_s = now_s
        if any(pending.asker is None for pending in self._pending):
            return
        if not self._next_parts and self._plan and now_s >= self._plan_s + self._plan[0].after_s:
            self._next_parts.extend(self._plan.popleft().requests)
        if self._next_parts:
            request = self._next_parts.popleft()
            if refusal := self._refusal(request, is_running=True):
                self._answer(None, request, refusal)
            else:
                self._begin(None, request, now_s)

    def links_changed(self, event: LinksChanged, now_s: float) -> None:
        """Answer the request that the launcher has carried out."""
        if event.number == UNASKED:
            self._add_note(event.refusal.replace("\n", " "))
        for pending in self._pending:
            if pending.number == event.number:
                if not event.refusal:
                    self._tell(pending, now_s)
                self._answer(pending.asker, pending.request, event.refusal)
                self._pending.remove(pending)
                return

    def end_stopped(self) -> None:
        """Kill the ranks that the case has stopped until its end."""
        if stopped := [record for record in self._records if record.is_left_stopped]:
            for record in stopped:
                record.leave_stopped()
            self._launcher.signal([record.rank for record in stopped], signal.SIGKILL)

    def _refusal(self, request: Request, *, is_running: bool) -> str:
        if not is_running:
            return _text("asked for after the end of the case", "A thread has called it.", "Wait for it in the test.")
        if self._keeps_ranks and (isinstance(request, LinkFault) or _SIGNALS[request.action] == signal.SIGKILL):
            return _text(
                "a fault that breaks the world of a worker pool",
                "The ranks of a pool run the next test, too; dead ranks and broken links would fail it. stop, cont and "
                "delay are possible.",
                'Give the test ranks of its own: isolation="fork".',
            )
        if isinstance(request, LinkFault):
            if not isinstance(self._launcher, LinkLauncher):
                return _text(
                    "this launcher cannot change the network",
                    "A launcher of the project's own has made the ranks.",
                    'Set isolation = "fork".',
                )
            # The process that has the nodes knows their number, and checks it.
            return ""
        strangers = [rank for rank in request.ranks if rank >= len(self._records)]
        if strangers or not request.ranks:
            return _text(
                f"{request.action} of ranks {list(request.ranks)} in a world of {len(self._records)} ranks",
                "A test can harm only the ranks of its own world.",
                "Name ranks of the world, from 0.",
            )
        ended = [rank for rank in request.ranks if self._records[rank].has_ended]
        if ended and request.action != "power off":
            return _text(
                f"{request.action} of rank {ended[0]}, which has ended",
                "It has ended by itself, or an earlier fault has killed it.",
                "Name a rank that runs.",
            )
        return ""

    def _begin(self, asker: RankRecord | None, request: Request, now_s: float) -> None:
        self._number += 1
        self._pending.append(_Pending(asker, request, self._number, now_s))
        self._note(asker, request, now_s)
        if isinstance(request, LinkFault):
            if self._hang_watch is not None:
                # A packet that is lost or late comes again, after a time that only the kernel knows.
                self._hang_watch.trust_no_wait()
            assert isinstance(self._launcher, LinkLauncher)
            self._launcher.change_links(self._world, self._number, request.links, request.rule)
            return
        number = _SIGNALS[request.action]
        for rank in request.ranks:
            self._records[rank].is_stopped_on_purpose = False
        self._launcher.signal(request.ranks, number)

    def _has_happened(self, request: SignalFault) -> bool:
        records = [self._records[rank] for rank in request.ranks]
        if _SIGNALS[request.action] == signal.SIGKILL:
            return all(record.has_ended for record in records)
        wants_stop = request.action == "stop"
        return all(record.has_ended or record.kernel_state.startswith("T") == wants_stop for record in records)

    def _tell(self, pending: _Pending, now_s: float) -> None:
        if self.on_happened is not None:
            by = None if pending.asker is None else pending.asker.rank
            self.on_happened(by, pending.request, pending.begun_s, now_s)

    def _answer(self, asker: RankRecord | None, request: Request, refusal: str = "") -> None:
        if asker is None:
            self._refused += [refusal.replace("\n", " ")] if refusal else []
            return
        if asker.channel.fileno() >= 0:
            asker.answer(FaultDone(request.number, refusal))

    def _note(self, asker: RankRecord | None, request: Request, now_s: float) -> None:
        if isinstance(request, SignalFault):
            what = fault_in_words(request.action, request.ranks, (), "")
        else:
            links = [(link.source, link.target) for link in request.links]
            what = fault_in_words("links", (), links, request.rule.describe())
        by = "the plan" if asker is None else f"rank {asker.rank}"
        self._add_note(f"fault on purpose, by {by} after {now_s - self._began_s:.1f} s: {what}")

    def _add_note(self, line: str) -> None:
        self._count += 1
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(line)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _stuck(request: SignalFault) -> str:
    return _text(
        f"{request.action} of ranks {_listed(request.ranks)} has had no effect after {_SIGNAL_LIMIT_S:.0f} s",
        "The kernel delivers no signal to a process that waits for a device, or that another process traces.",
        "Look at the rank's stacks in the report.",
    )


def _text(what: str, cause: str, way_out: str) -> str:
    return f"world.faults: {what}.\n{cause}\n{way_out}"
