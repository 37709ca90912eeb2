"""Writes a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: every rank's time, and who made whom fail.

One process of the trace is one run of a target; its lanes are: the cases, and every rank. A case is a bar on the first
lane, with its wait for GPUs inside; the phases of a rank are bars on the lane of the rank, and below it are the
collective calls of a rank whose ledger the runner has read. Marks say when a rank failed, and when a fault on purpose
happened; arrows go from the culprit to its victims.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import BAD, CaseRecord, Ledger, RankRecord
from dist_testing.report.facts import gpus_of
from dist_testing.report.model import RunRecord
from dist_testing.report.words import clean

# Lane of the cases, and of rank 0. After the lane of a rank come those of its collective calls.
_CASES = 1
_FIRST_RANK = 10
# Calls of one rank that are drawn at one time; more would need more lanes.
_COLLECTIVE_LANES = 4
_MAX_TEXT_CHARS = 500
# A mark is drawn this long, so that it can be seen and clicked on. Microseconds.
_MARK_US = 1

_Event = dict[str, Any]


def trace(runs: Sequence[RunRecord]) -> bytes:
    """Return the trace of some runs, as JSON in the format of Chrome's traces. Runs without times are left out."""
    begins = [
        (run.wall_zero_s or 0.0) + case.began_at_s
        for run in runs
        if run.wall_zero_s is not None
        for case in run.cases
        if case.began_at_s is not None
    ]
    events: list[_Event] = []
    arrows = itertools.count(1)
    for process, run in enumerate(runs, 1):
        if run.wall_zero_s is not None and any(case.began_at_s is not None for case in run.cases):
            # Times are microseconds from the begin of the first case on.
            events += _run_events(run, process, run.wall_zero_s - min(begins), arrows)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")).encode()


def _run_events(run: RunRecord, process: int, offset_s: float, arrows: Iterator[int]) -> list[_Event]:
    events: list[_Event] = []
    for case in run.cases:
        if case.began_at_s is not None:
            events += _Case(case, process, case.began_at_s + offset_s, arrows).events
    used = {event["tid"] for event in events}
    lanes = {_CASES: "cases"}
    for rank in sorted({rank.rank for case in run.cases for rank in case.ranks}):
        lanes[_lane(rank)] = f"rank {rank}"
        own = range(_lane(rank) + 1, _lane(rank + 1))
        lanes |= {lane: f"rank {rank}, collectives" for lane in own if lane in used}
    name = f"{run.target}{run.in_part}{f' on {run.host}' if run.host else ''}"
    names: list[_Event] = [{"tid": 0, "name": "process_name", "args": {"name": _text(name)}}]
    for lane, title in lanes.items():
        names.append({"tid": lane, "name": "thread_name", "args": {"name": _text(title)}})
        # Otherwise Perfetto sorts them by name.
        names.append({"tid": lane, "name": "thread_sort_index", "args": {"sort_index": lane}})
    return [*({"ph": "M", "pid": process, **one} for one in names), *events]


def _lane(rank: int) -> int:
    return _FIRST_RANK + (1 + _COLLECTIVE_LANES) * rank


def _text(value: str) -> str:
    return shorten(clean(value), _MAX_TEXT_CHARS)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


class _Case:
    """Draws one case: its `events`. Times of the case and its ranks are seconds after the begin of the case."""

    def __init__(self, case: CaseRecord, process: int, begin_s: float, arrows: Iterator[int]) -> None:
        self.events: list[_Event] = []
        self._case = case
        self._process = process
        self._begin_s = begin_s
        self._end_s = max([case.duration_s, *(phase.end_s for rank in case.ranks for phase in rank.phases)])
        args = {
            "status": case.status,
            "cause": _text(case.cause),
            "message": _text(case.message),
            "culprit": case.culprit,
            "world_size": case.world_size,
            "isolation": _text(case.isolation),
        }
        gpus, wait_s = gpus_of(case)
        if gpus:
            args["gpus"] = _text(gpus)
        self._bar(_CASES, case.name, 0.0, self._end_s, "case", args)
        if 0 < wait_s <= self._end_s:
            self._bar(_CASES, "waiting for GPUs", 0.0, wait_s, "lease", {})
        ranks = {rank.rank: rank for rank in case.ranks}
        for fault in case.faults:
            for lane in [_lane(rank) for rank in fault.ranks if rank in ranks] or [_CASES]:
                self._mark(lane, fault.text, fault.at_s, cat="fault")
        for rank in ranks.values():
            self._add_rank(rank)
        for ledger in case.ledgers:
            if ledger.rank in ranks and 0 <= ledger.read_s <= self._end_s:
                self._add_ledger(ledger)
        self._add_arrows({number: rank.seen_s for number, rank in ranks.items() if rank.seen_s is not None}, arrows)

    def _add(self, kind: str, lane: int, name: str, time_s: float, **more: object) -> None:
        event = {"ph": kind, "pid": self._process, "tid": lane, "ts": _us(self._begin_s + time_s), "name": _text(name)}
        self.events.append({**event, **more})

    def _bar(self, lane: int, name: str, begin_s: float, end_s: float, kind: str, args: _Event) -> None:
        length = max(0.0, _us(self._begin_s + end_s) - _us(self._begin_s + begin_s))
        self._add("X", lane, name, begin_s, dur=round(length, 1), cat=kind, **({"args": args} if args else {}))

    def _mark(self, lane: int, name: str, time_s: float, **more: object) -> None:
        if 0 <= time_s <= self._end_s:
            self._add("i", lane, name, time_s, s="t", **more)

    def _add_rank(self, rank: RankRecord) -> None:
        lane, last = _lane(rank.rank), 0.0
        for phase in rank.phases:
            # In order, and without overlaps: Perfetto drops a bar that crosses another on its lane.
            start, stop = max(last, phase.begin_s), min(self._end_s, phase.end_s)
            if stop < start:
                continue
            args: _Event = {"pid": rank.pid} if rank.pid is not None and phase is rank.phases[0] else {}
            self._bar(lane, phase.name, start, stop, "phase", args)
            last = stop
        for what, time_s in (("process started", rank.started_s), ("ready", rank.ready_s)):
            if time_s is not None:
                self._mark(lane, what, time_s)
        if rank.seen_s is None or rank.outcome in ("", "passed", "skipped"):
            return
        victims = self._case.victims
        role = "culprit" if rank.rank == self._case.culprit else "victim" if rank.rank in victims else rank.outcome
        # A bar that crosses the end of another would be dropped.
        gaps = [_us(phase.end_s) - _us(rank.seen_s) for phase in rank.phases]
        length = min([gap for gap in gaps if gap > 0] + [_MARK_US])
        args = {"outcome": rank.outcome, "description": _text(rank.description), "operation": _text(rank.operation)}
        self._add("X", lane, role, rank.seen_s, dur=round(length, 1), cat="outcome", args=args)

    def _add_ledger(self, ledger: Ledger) -> None:
        """Add a bar for each call whose end is known or that had not ended; a mark for one with only a begin."""
        lane = _lane(ledger.rank)
        told = {"place": _text(ledger.place), "calls": _text("; ".join(call.words for call in ledger.calls))}
        self._mark(lane, ledger.state, ledger.read_s, cat="ledger", args=told)
        # End of the last bar on each lane: Perfetto drops a bar that crosses another.
        ends = [0.0] * _COLLECTIVE_LANES
        for call in sorted(ledger.calls, key=lambda call: call.begin_s or 0.0):
            if call.begin_s is None or not 0 <= call.begin_s <= ledger.read_s:
                continue
            end_s = ledger.read_s if call.end_s is None and not call.is_done else call.end_s
            args: _Event = {"ended": call.is_done}
            if end_s is None:
                self._mark(lane + 1, call.name, call.begin_s, cat="collective", args=args)
                continue
            free = next((number for number, end in enumerate(ends) if end <= call.begin_s), None)
            if free is not None:
                ends[free] = max(call.begin_s, min(end_s, ledger.read_s))
                self._bar(lane + 1 + free, call.name, call.begin_s, ends[free], "collective", args)

    def _add_arrows(self, seen: Mapping[int, float], arrows: Iterator[int]) -> None:
        case = self._case
        if case.culprit is None or case.culprit not in seen or case.status not in BAD:
            return
        for victim in case.victims:
            if victim in seen:
                # An arrow leads forward in time: the runner may see a victim's end first.
                start_s = min(seen[case.culprit], seen[victim])
                more: _Event = {"id": next(arrows), "cat": "consequence"}
                self._add("s", _lane(case.culprit), "consequence", start_s, **more)
                self._add("f", _lane(victim), "consequence", seen[victim], bp="e", **more)
