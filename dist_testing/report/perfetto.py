"""Writes a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: every rank's time, and who made whom fail.

One process of the trace is one run of a target; its lanes are: the cases, and every rank. A case is a bar on the first
lane, with its wait for GPUs inside; the phases of a rank are bars on the lane of the rank, and below it are the
collective calls of a rank whose ledger the runner has read. Marks say when a rank failed, and when a fault on purpose
happened; arrows go from the culprit to its victims.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
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
# Ranks that are drawn; more are of a damaged file.
_MAX_RANK = 100_000
# A mark is drawn this long, so that it can be seen and clicked on. Microseconds.
_MARK_US = 1

_Event = dict[str, Any]


def trace(runs: Sequence[RunRecord]) -> bytes:
    """Return the trace of some runs, as JSON. Runs without times are left out."""
    events = list(_trace_events(runs))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")).encode()


def _trace_events(runs: Sequence[RunRecord]) -> Iterator[_Event]:
    """Yield the events of the trace, in the format of Chrome's traces. Times are microseconds from the first run on."""
    timed = [
        run for run in runs if run.wall_zero_s is not None and any(case.began_at_s is not None for case in run.cases)
    ]
    if not timed:
        return
    zero_s = min((run.wall_zero_s or 0.0) + min(_times(run)) for run in timed)
    arrows = itertools.count(1)
    for process, run in enumerate(timed, 1):
        offset_s = (run.wall_zero_s or 0.0) - zero_s
        yield from _run_events(run, process, offset_s, arrows)


def _times(run: RunRecord) -> list[float]:
    return [case.began_at_s for case in run.cases if case.began_at_s is not None]


def _run_events(run: RunRecord, process: int, offset_s: float, arrows: Iterator[int]) -> Iterator[_Event]:
    name = f"{run.target}{run.in_part}{f' on {run.host}' if run.host else ''}"
    yield _name("process_name", process, 0, name)
    events = [event for case in run.cases for event in _case_events(case, process, offset_s, arrows)]
    used = {event["tid"] for event in events}
    lanes = {_CASES: "cases"}
    for rank in sorted({rank.rank for case in run.cases for rank in case.ranks if rank.rank <= _MAX_RANK}):
        lanes[_lane(rank)] = f"rank {rank}"
        own = range(_lane(rank) + 1, _lane(rank + 1))
        lanes |= {lane: f"rank {rank}, collectives" for lane in own if lane in used}
    for lane, title in lanes.items():
        yield _name("thread_name", process, lane, title)
        # Otherwise Perfetto sorts them by name.
        yield {"ph": "M", "pid": process, "tid": lane, "name": "thread_sort_index", "args": {"sort_index": lane}}
    yield from events


def _lane(rank: int) -> int:
    return _FIRST_RANK + (1 + _COLLECTIVE_LANES) * rank


def _name(kind: str, process: int, lane: int, name: str) -> _Event:
    return {"ph": "M", "pid": process, "tid": lane, "name": kind, "args": {"name": _text(name)}}


def _text(value: str) -> str:
    return shorten(clean(value), _MAX_TEXT_CHARS)


def _case_events(case: CaseRecord, process: int, offset_s: float, arrows: Iterator[int]) -> Iterator[_Event]:
    if case.began_at_s is None:
        return
    begin = offset_s = case.began_at_s + offset_s
    end = begin + max([case.duration_s, *(phase.end_s for rank in case.ranks for phase in rank.phases)])
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
    yield _bar(process, _CASES, _text(case.name), begin, end, "case", args)
    if wait_s and begin + wait_s <= end:
        yield _bar(process, _CASES, "waiting for GPUs", begin, begin + wait_s, "lease", {})
    drawn = {rank.rank for rank in case.ranks if rank.rank <= _MAX_RANK}
    for fault in case.faults:
        if begin <= fault.at_s + offset_s <= end:
            for lane in [_lane(rank) for rank in fault.ranks if rank in drawn] or [_CASES]:
                yield _mark(process, lane, fault.text, fault.at_s + offset_s, cat="fault")
    for rank in case.ranks:
        if rank.rank in drawn:
            yield from _rank_events(case, rank, process, offset_s, begin, end)
    yield from _arrows(case, process, offset_s, arrows)


def _bar(process: int, lane: int, name: str, begin: float, end: float, kind: str, args: _Event) -> _Event:
    start, length = _us(begin), max(0.0, _us(end) - _us(begin))
    bar = {"ph": "X", "pid": process, "tid": lane, "ts": start, "dur": round(length, 1), "name": name, "cat": kind}
    return {**bar, "args": args} if args else bar


def _mark(process: int, lane: int, name: str, time_s: float, **more: object) -> _Event:
    return {"ph": "i", "s": "t", "pid": process, "tid": lane, "ts": _us(time_s), "name": _text(name), **more}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _rank_events(
    case: CaseRecord, rank: RankRecord, process: int, offset_s: float, begin: float, end: float
) -> Iterator[_Event]:
    lane = _lane(rank.rank)
    last = begin
    for phase in rank.phases:
        # In order, and without overlaps: Perfetto drops a bar that crosses another on its lane.
        start, stop = max(last, phase.begin_s + offset_s), min(end, phase.end_s + offset_s)
        if stop < start:
            continue
        args = {"pid": rank.pid} if rank.pid is not None and phase is rank.phases[0] else {}
        yield _bar(process, lane, _text(phase.name), start, stop, "phase", args)
        last = stop
    for what, time in (("process started", rank.started_s), ("ready", rank.ready_s)):
        if time is not None and begin <= time + offset_s <= end:
            yield _mark(process, lane, what, time + offset_s)
    for ledger in case.ledgers:
        if ledger.rank == rank.rank and 0 <= ledger.read_s and ledger.read_s + offset_s <= end:
            words = "; ".join(call.words for call in ledger.calls)
            calls: _Event = {"place": _text(ledger.place), "calls": _text(words)}
            yield _mark(process, lane, ledger.state, ledger.read_s + offset_s, cat="ledger", args=calls)
            yield from _collective_events(ledger, process, lane + 1, offset_s)
    if rank.seen_s is None or rank.outcome in ("", "passed", "skipped"):
        return
    role = "culprit" if rank.rank == case.culprit else "victim" if rank.rank in case.victims else rank.outcome
    time = rank.seen_s + offset_s
    # A bar that crosses the end of another would be dropped.
    gaps = [_us(phase.end_s + offset_s) - _us(time) for phase in rank.phases]
    length = min([gap for gap in gaps if gap > 0] + [_MARK_US])
    told: _Event = {"outcome": rank.outcome, "description": _text(rank.description), "operation": _text(rank.operation)}
    yield {**_bar(process, lane, role, time, time, "outcome", told), "dur": round(length, 1)}


def _collective_events(ledger: Ledger, process: int, first: int, offset_s: float) -> Iterator[_Event]:
    """Yield a bar for each call whose end is known or that had not ended; a mark for one with only a begin."""
    # End of the last bar on each lane: Perfetto drops a bar that crosses another.
    ends = [offset_s] * _COLLECTIVE_LANES
    for call in sorted(ledger.calls, key=lambda call: call.begin_s or 0.0):
        if call.begin_s is None or not 0 <= call.begin_s <= ledger.read_s:
            continue
        start = call.begin_s + offset_s
        end_s = ledger.read_s if call.end_s is None and not call.is_done else call.end_s
        args: _Event = {"ended": call.is_done}
        if end_s is None:
            yield _mark(process, first, call.name, start, cat="collective", args=args)
            continue
        lane = next((number for number, end in enumerate(ends) if end <= start), None)
        if lane is not None:
            ends[lane] = max(start, min(end_s, ledger.read_s) + offset_s)
            yield _bar(process, first + lane, _text(call.name), start, ends[lane], "collective", args)


def _arrows(case: CaseRecord, process: int, offset_s: float, arrows: Iterator[int]) -> Iterator[_Event]:
    seen = {rank.rank: rank.seen_s for rank in case.ranks if rank.seen_s is not None and rank.rank <= _MAX_RANK}
    if case.culprit is None or case.culprit not in seen or case.status not in BAD:
        return
    source = seen[case.culprit]
    for victim in case.victims:
        if victim not in seen:
            continue
        # An arrow leads forward in time: the runner may see a victim's end first.
        start = min(source, seen[victim]) + offset_s
        ends: Iterable[tuple[str, int, float]] = (("s", case.culprit, start), ("f", victim, seen[victim] + offset_s))
        number = next(arrows)
        for kind, rank, time in ends:
            arrow = {"ph": kind, "id": number, "pid": process, "tid": _lane(rank), "ts": _us(time)}
            yield {**arrow, "name": "consequence", "cat": "consequence", **({"bp": "e"} if kind == "f" else {})}
