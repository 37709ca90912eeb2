"""The trace: one lane per rank, bars that do not cross, and arrows from the culprit to its victims."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from dist_testing.core.ground.record import CaseRecord, Ledger, LedgerCall, RankRecord
from dist_testing.report.__main__ import main
from dist_testing.report.gather import gather
from dist_testing.report.model import RunRecord
from dist_testing.report.page import lanes as lanes_of
from dist_testing.report.perfetto import trace
from dist_testing.report.words import grouped
from tests.report.streams import CASES, CULPRIT, PHASES, RANKS, Case, large_run, write_stream

_BAD = Case("t.py::bad", "failed", "rank 1 raised", "text", 4, "failure", 1, (0, 3), gpu_wait_s=0.5)


_NUMBER = (int, float)
_TIMED = {"pid": int, "tid": int, "ts": _NUMBER, "name": str}
# Fields of an event by its kind, as Chrome's format of traces defines them, and those that it may lack.
_FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "M": ({"pid": int, "tid": int, "name": str, "args": dict}, {}),
    "X": ({**_TIMED, "dur": _NUMBER, "cat": str}, {"args": dict}),
    "i": ({**_TIMED, "s": str}, {"cat": str, "args": dict}),
    "s": ({**_TIMED, "id": int, "cat": str}, {}),
    "f": ({**_TIMED, "id": int, "cat": str, "bp": str}, {}),
}


def _checked(content: bytes) -> list[dict[str, Any]]:
    """Return the events of a trace, after a check of each by the format that Perfetto reads."""
    whole = json.loads(content)
    assert {name: type(value) for name, value in whole.items()} == {"traceEvents": list, "displayTimeUnit": str}
    events: list[dict[str, Any]] = whole["traceEvents"]
    named = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name"}
    bars = defaultdict(list)
    for one in events:
        needed, allowed = _FORMS[one["ph"]]
        fields = {name: value for name, value in one.items() if name != "ph"}
        assert needed.keys() <= fields.keys() <= {*needed, *allowed}, one
        for name, value in fields.items():
            assert isinstance(value, {**needed, **allowed}[name]), one
            assert type(value) is not bool, one
        assert one["name"] == "process_name" or (one["pid"], one["tid"]) in named, one
        assert one.get("ts", 0) >= 0, one
        assert one.get("dur", 0) >= 0, one
        if one["ph"] == "X":
            bars[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    arrows = defaultdict(list)
    for one in events:
        if one["ph"] in "sf":
            arrows[one["id"]].append(one)
            # An arrow begins and ends at a bar, else Perfetto drops it.
            assert any(start <= one["ts"] <= end for start, end in bars[one["pid"], one["tid"]]), one
    for lane in bars.values():
        # Perfetto drops a bar that crosses the end of another, without a word.
        open_until: list[float] = []
        for begin, until in sorted(lane, key=lambda bar: (bar[0], -bar[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or until <= open_until[-1] + 0.05, (begin, until, open_until)
            open_until.append(until)
    for start, end in arrows.values():
        assert (start["ph"], end["ph"], start["cat"], start["name"]) == ("s", "f", end["cat"], end["name"])
        assert start["ts"] <= end["ts"]
    return events


def _events(folder: Path, *cases: Case) -> list[dict[str, Any]]:
    path = write_stream(folder / "e.jsonl", cases, target="//a:a")
    return _checked(trace(gather([path]).runs))


def _lanes(events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def _phases(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the names of the phases on each lane, in their order."""
    lanes = _lanes(events)
    return grouped((lanes[event["tid"]], event["name"]) for event in events if event.get("cat") == "phase")


def _arrows(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the lanes at the begin and at the end of each arrow."""
    lanes = _lanes(events)
    starts, ends = ({event["id"]: lanes[event["tid"]] for event in events if event["ph"] == kind} for kind in "sf")
    return [(starts[number], ends[number]) for number in sorted(starts)]


def _picture(folder: Path) -> dict[str, Any]:
    picture = lanes_of(gather([folder / "e.jsonl"]).runs[0].cases[0])
    assert picture is not None
    return picture


def test_each_rank_has_its_phases_and_the_culprit_its_arrows(tmp_path: Path) -> None:
    """If it fails, Perfetto shows the phases on the wrong rank, or the trace blames the wrong one."""
    events = _events(tmp_path, Case("t.py::ok", world_size=2), _BAD)
    lanes = _lanes(events)
    calls = [f"rank {rank}, collectives" for rank in (0, 3)]
    assert list(lanes.values()) == ["cases", "rank 0", calls[0], "rank 1", "rank 2", "rank 3", calls[1]]
    phases = list(PHASES)
    assert _phases(events) == {"rank 0": phases * 2, "rank 1": phases * 2, "rank 2": phases, "rank 3": phases}
    on_cases = [event["name"] for event in events if event["tid"] == 1 and event["ph"] == "X"]
    assert on_cases == ["t.ok", "t.bad", "waiting for GPUs"]
    waits, ended = "waits in all_reduce #1 of the default group", "broadcast #0 of group 0"
    assert {event["name"] for event in events if event["ph"] == "i"} == {"process started", "ready", waits, ended}
    assert min(event["ts"] for event in events if "ts" in event) == 0
    assert _arrows(events) == [("rank 1", "rank 0"), ("rank 1", "rank 3")]
    marks = {lanes[event["tid"]]: event["name"] for event in events if event.get("cat") == "outcome"}
    assert marks == {"rank 0": "victim", "rank 1": "culprit", "rank 3": "victim"}


def test_collective_calls_are_bars_below_their_rank(tmp_path: Path) -> None:
    """If it fails, the trace of a hang does not show in which call each rank waits, and since when."""
    events = _events(tmp_path, _BAD)
    lanes = _lanes(events)
    calls = [event for event in events if event.get("cat") == "collective"]
    # torch does not say when a call of gloo has ended.
    assert {
        (lanes[call["tid"]], call["name"], call["ph"], call["args"]["ended"], call.get("dur")) for call in calls
    } == {
        (f"rank {rank}, collectives", *call)
        for rank in (0, 3)
        for call in (
            ("broadcast #0 of group 0", "i", True, None),
            ("all_reduce #1 of group 0", "X", False, 170_000.0),
        )
    }
    titles = [call["title"] for lane in _picture(tmp_path)["lanes"] for call in lane["calls"]]
    assert titles == ["broadcast #0 of group 0", "all_reduce #1 of group 0, 0.17 s, not ended"] * 2


def test_faults_on_purpose_are_marked_where_and_when_they_happened(tmp_path: Path) -> None:
    """If it fails, the trace shows a rank that dies, and not that the test has killed it."""
    events = _events(tmp_path, replace(_BAD, gpu_wait_s=0.0, has_faults=True))
    lanes = _lanes(events)
    cut, killed = "links between nodes 0->1: cut, by the plan", "kill of rank 1, by rank 0"
    marks = [(lanes[event["tid"]], event["ts"], event["name"]) for event in events if event.get("cat") == "fault"]
    assert marks == [("cases", 100_000, cut), ("rank 1", 110_000, killed)]
    titles = [title for _, title in _picture(tmp_path)["faults"]]
    assert titles == [f"{cut}, after 0.10 s", f"{killed}, after 0.11 s"]


def test_calls_at_one_time_have_lanes_of_their_own() -> None:
    """If it fails, Perfetto drops calls that overlap."""
    calls = tuple(LedgerCall("0", n, "gloo", "all_reduce", "", False, 1.0 + n, None) for n in range(6))
    done = LedgerCall("1", 9, "gloo", "broadcast", "", True, 1.5, 1.7)
    ledger = Ledger(0, 9.0, "waits", "t.py:1", (calls[0], done, *calls[1:]))
    ranks = (RankRecord(0, "stopped"),)
    case = CaseRecord("t", "failed", ranks=ranks, ledgers=(ledger,), began_at_s=0.5, duration_s=10.0)
    events = json.loads(trace([RunRecord("//a:a", wall_zero_s=1.7e9, cases=(case,))]))["traceEvents"]
    bars = [(one["tid"], one["name"], one["ts"], one["dur"]) for one in events if one.get("cat") == "collective"]
    assert len({tid for tid, *_ in bars}) == 4
    ends: dict[int, float] = {}
    for tid, _, start, length in bars:
        assert start >= ends.get(tid, 0.0)
        ends[tid] = start + length
    assert [name for _, name, *_ in bars].count(done.name) == 1


def test_hostile_times_and_names_make_no_broken_trace(tmp_path: Path) -> None:
    """If it fails, one damaged stream makes a trace that does not open."""
    path = write_stream(tmp_path / "e.jsonl", [_BAD, Case("t.py::\x00\u202e" + "x" * 10_000)])
    text = (
        path.read_text(encoding="utf-8")
        .replace('"call",', '"call\\u202e",')
        .replace(',"seen_s":', ',"seen_s":1e300,"x":')
    )
    path.write_text(text.replace('[["start",', '[["start",-1e300,1e300],["start",'), encoding="utf-8")
    content = trace(gather([path]).runs)
    events = json.loads(content)["traceEvents"]
    assert all(abs(event.get("ts", 0)) + event.get("dur", 0) < 1e15 for event in events)
    assert b"NaN" not in content
    assert b"Infinity" not in content
    assert len(content) < 20_000


def test_a_world_of_64_ranks_with_a_thousand_events_each_is_small() -> None:
    """If it fails, the trace of a large target does not open."""
    content = trace([large_run()])
    assert len(gzip.compress(content, 6)) < 4_000_000
    events = _checked(content)
    lanes = _lanes(events)
    ranks = [f"rank {rank}" for rank in range(RANKS)]
    assert list(lanes.values()) == ["cases", *ranks]
    order = {one["tid"]: one["args"]["sort_index"] for one in events if one["name"] == "thread_sort_index"}
    assert sorted(lanes, key=order.__getitem__) == list(lanes)
    assert _phases(events) == {rank: list(PHASES) * CASES for rank in ranks}
    assert sorted(_arrows(events)) == sorted((f"rank {CULPRIT}", rank) for rank in ranks if rank != f"rank {CULPRIT}")


def test_the_command_writes_one_trace_or_one_for_each_target(tmp_path: Path) -> None:
    """If it fails, the trace of one target cannot be sent to a colleague."""
    for name in ("a", "b"):
        write_stream(tmp_path / name / "e.jsonl", [_BAD], target=f"//{name}:{name}")
    given = [str(tmp_path / "a"), str(tmp_path / "b"), f"--out={tmp_path / 'page.html'}"]
    assert main([*given, f"--trace={tmp_path / 'all.json.gz'}"]) == 0
    processes = json.loads(gzip.decompress((tmp_path / "all.json.gz").read_bytes()))["traceEvents"]
    assert {one["args"]["name"] for one in processes if one["name"] == "process_name"} == {"//a:a", "//b:b"}
    assert main([*given, f"--trace={tmp_path / 'traces'}"]) == 0
    written = sorted(path.name.removesuffix(".json.gz") for path in (tmp_path / "traces").iterdir())
    assert written == ["a-a", "b-b", "invocation-1", "invocation-2"]
