"""Carries out the faults that the ranks of a world ask for, and answers when each has happened.

A request is checked as if a stranger had sent it: it may name only ranks and nodes of the rank's own world.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections import deque
from dataclasses import dataclass

from dist_testing.core.engine.hooks import CaseStart, WatchedWorld, WorldWatcher
from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Cause, Status, Verdict
from dist_testing.core.ground.record import Fault, LinkEnds, fault_in_words
from dist_testing.nodes.check import nodes_of
from dist_testing.nodes.faults import (
    ADD_ON,
    FAULT_REQUESTS,
    LINK_ANSWERS,
    LINK_ORDERS,
    LinkFault,
    Request,
    SignalFault,
    refused,
)
from dist_testing.nodes.planned import PlannedFault, plan_of

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
# A test that asks for faults without end must not fill the file of events.
_MAX_FAULTS = 1000


@dataclass(slots=True)
class _Pending:
    """A request whose fault has not happened yet. `asker` is None for one of the plan."""

    asker: RankRecord | None
    request: Request
    begun_s: float


class FaultDesk(WorldWatcher):
    """Carries out the faults of one world."""

    def __init__(self, world: WatchedWorld) -> None:
        super().__init__(world)
        self._records = world.records
        self._asked: list[tuple[RankRecord, Request]] = []

    def begin_case(self, start: CaseStart) -> None:
        """Forget the faults of the last case."""
        self._start = start
        self._plan = deque(plan_of(start.case))
        # Of which a part has begun.
        self._planned: PlannedFault | None = None
        self._plan_s = math.inf
        self._pending: list[_Pending] = []
        self._refused: list[str] = []
        self._faults: list[Fault] = []
        self._notes: list[str] = []
        self._further_notes = 0
        self.next_s = math.inf
        if self._plan:
            # A rank may wait for a fault.
            self._world.disable_proof()
            self.next_s = start.began_s

    def on_message(self, rank: int, payload: str) -> None:
        """Note what a rank asks for."""
        self._asked.append((self._records[rank], FAULT_REQUESTS.from_wire(payload)))

    def explain(self, result: CaseResult) -> CaseResult:
        """Fail a case whose planned faults did not happen; name the faults of one that has failed."""
        unfinished = [self._planned] if self._is_in_plan() else []
        unfinished += [part.planned for part in self._plan]
        ended = {planned: "during it" if planned == self._planned else "before" for planned in unfinished}
        missed = [*self._refused, *(f"{planned}: the case ended {when}" for planned, when in ended.items())]
        if result.verdict.status is Status.PASSED and missed:
            reason = f"planned faults did not happen: {'; '.join(missed)}"
            result = dataclasses.replace(result, verdict=Verdict(Status.FAILED, Cause.FAILURE, reason))
        further = [f"{self._further_notes} further faults"] if self._further_notes else []
        return dataclasses.replace(result, notes=(*result.notes, *self._notes, *further), faults=tuple(self._faults))

    def poll(self, now_s: float) -> None:
        """Begin what the ranks have asked for, and answer requests whose faults have happened."""
        asked, self._asked = self._asked, []
        for record, request in asked:
            self._begin(record, request, now_s)
        if self._world.is_running:
            self._follow_plan(now_s)
        for pending in list(self._pending):
            request = pending.request
            if isinstance(request, LinkFault):
                continue
            if self._has_happened(request):
                for rank in request.ranks:
                    self._records[rank].is_stopped_on_purpose = request.action == "stop"
                self._end(pending, now_s)
            elif now_s >= pending.begun_s + _SIGNAL_LIMIT_S:
                self._end(pending, now_s, _stuck(request))
        self.next_s = self._next_look_s(now_s)

    def _next_look_s(self, now_s: float) -> float:
        if any(isinstance(pending.request, SignalFault) for pending in self._pending):
            return now_s + _LOOK_S
        if self._is_in_plan() or not self._plan:
            # The launcher's answer ends the wait, if there is one.
            return math.inf
        # The begin of a test is no event of the runner.
        due_s = self._plan_s + self._plan[0].planned.after_s if self._plan_s < math.inf else now_s
        return max(due_s, now_s + _LOOK_S)

    def _is_in_plan(self) -> bool:
        return any(pending.asker is None for pending in self._pending)

    def _follow_plan(self, now_s: float) -> None:
        """Begin the next part of the plan, when its time has come and the part before it has happened."""
        if self._plan_s == math.inf and all(record.has_begun_test for record in self._records):
            self._plan_s = now_s
        if self._plan and not self._is_in_plan() and now_s >= self._plan_s + self._plan[0].planned.after_s:
            self._planned, request = self._plan.popleft()
            self._begin(None, request, now_s)

    def on_answer(self, payload: str) -> None:
        """Answer the request that the place of the world has carried out; or all, if it cannot carry out any."""
        refusal = LINK_ANSWERS.from_wire(payload).refusal
        waiting = [pending for pending in self._pending if isinstance(pending.request, LinkFault)]
        if refusal and not waiting:
            self._add_note(refusal.replace("\n", " "))
        for pending in waiting if refusal else waiting[:1]:
            self._end(pending, time.monotonic(), refusal)

    def ranks_settled(self) -> None:
        """Kill the ranks that the case has stopped until its end."""
        if stopped := [record for record in self._records if record.is_left_stopped]:
            for record in stopped:
                record.was_left_stopped = True
            self._world.signal_ranks([record.rank for record in stopped], signal.SIGKILL)

    def _refusal(self, request: Request) -> str:
        if not self._world.is_running:
            return refused("asked for after the end of the case", "A thread has called it.", "Wait for it in the test.")
        if self._start.keeps_ranks and (isinstance(request, LinkFault) or _SIGNALS[request.action] == signal.SIGKILL):
            return refused(
                "a fault that breaks the world of a worker pool",
                "The ranks of a pool run the next test, too; dead ranks and broken links would fail it. stop, cont and "
                "delay are possible.",
                'Give the test ranks of its own: isolation="fork".',
            )
        # The rank has checked this, but test code can go past it.
        if not self._is_of_world(request):
            return refused(
                f"{fault_in_words(*_recorded(request))} in a world of {len(self._records)} ranks",
                "A test can harm only the ranks, and the links between simulated nodes, of its own world.",
                "Name ranks and nodes of the world, from 0.",
            )
        if isinstance(request, LinkFault) or request.action == "power off":
            return ""
        if ended := [rank for rank in request.ranks if self._records[rank].has_ended]:
            return refused(
                f"{request.action} of rank {ended[0]}, which has ended",
                "It has ended by itself, or an earlier fault has killed it.",
                "Name a rank that runs.",
            )
        return ""

    def _is_of_world(self, request: Request) -> bool:
        if isinstance(request, SignalFault):
            return bool(request.ranks) and max(request.ranks) < len(self._records)
        count = nodes_of(self._start.case)
        return bool(request.links) and all(
            source != target and 0 <= min(source, target) and max(source, target) < count
            for source, target in request.links
        )

    def _begin(self, asker: RankRecord | None, request: Request, now_s: float) -> None:
        """Begin a fault, or refuse it."""
        if refusal := self._refusal(request):
            self._answer(asker, refusal)
            return
        by = "the plan" if asker is None else f"rank {asker.rank}"
        what = fault_in_words(*_recorded(request))
        self._add_note(f"fault on purpose, by {by} after {now_s - self._start.began_s:.1f} s: {what}")
        if isinstance(request, LinkFault):
            # A packet that is lost or late comes again, after a time that only the kernel knows.
            self._world.disable_proof()
            if not self._world.order(ADD_ON, LINK_ORDERS.to_wire(request).decode()):
                refusal = refused(
                    "this launcher cannot change the network",
                    "A launcher of the project's own has made the ranks.",
                    'Set isolation = "fork".',
                )
                self._answer(asker, refusal)
                return
        else:
            for rank in request.ranks:
                self._records[rank].is_stopped_on_purpose = False
            self._world.signal_ranks(request.ranks, _SIGNALS[request.action])
        self._pending.append(_Pending(asker, request, now_s))

    def _has_happened(self, request: SignalFault) -> bool:
        records = [self._records[rank] for rank in request.ranks]
        if _SIGNALS[request.action] == signal.SIGKILL:
            return all(record.has_ended for record in records)
        wants_stop = request.action == "stop"
        return all(record.has_ended or record.kernel_state.startswith("T") == wants_stop for record in records)

    def _end(self, pending: _Pending, now_s: float, refusal: str = "") -> None:
        """Answer a request: its fault has happened, or could not be carried out."""
        self._pending.remove(pending)
        if not refusal and len(self._faults) < _MAX_FAULTS:
            by = None if pending.asker is None else pending.asker.rank
            self._faults.append(Fault(now_s, *_recorded(pending.request), by, pending.begun_s))
        self._answer(pending.asker, refusal)

    def _answer(self, asker: RankRecord | None, refusal: str) -> None:
        if asker is None:
            self._refused += [refusal.replace("\n", " ")] if refusal else []
        elif asker.channel.fileno() >= 0:
            asker.answer(ADD_ON, refusal)

    def _add_note(self, line: str) -> None:
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(line)
        else:
            self._further_notes += 1


def _recorded(request: Request) -> tuple[str, tuple[int, ...], tuple[LinkEnds, ...], str]:
    """What, on which ranks, on which links, and their rule: as `Fault` keeps it."""
    if isinstance(request, SignalFault):
        return request.action, request.ranks, (), ""
    return "links", (), request.links, request.rule.describe()


def _stuck(request: SignalFault) -> str:
    ranks = ", ".join(map(str, request.ranks))
    return refused(
        f"{request.action} of ranks {ranks} has had no effect after {_SIGNAL_LIMIT_S:.0f} s",
        "The kernel delivers no signal to a process that waits for a device, or that another process traces.",
        "Look at the rank's stacks in the report.",
    )
