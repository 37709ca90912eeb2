"""The trace in Perfetto's own trace processor: what it keeps of lanes, order and arrows, asked in SQL."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dist_testing.report.gather import gather
from dist_testing.report.perfetto import trace
from tests.report import trace_processor
from tests.report.large_world import CASES, CULPRIT, PHASES, RANKS, large_run
from tests.report.streams import Case, write_stream
from tests.report.trace_processor import ask, fields

# Perfetto counts here what it drops: bars that cross another, arrows without a bar, events that it cannot read.
_DROPPED = "select json_array(name, value) row from stats where value > 0 and severity in ('error', 'data_loss')"
# The ends of each arrow.
_ARROWS = """select json_array(source.name, target.name) row from flow
    join slice begun on flow.slice_out = begun.id join thread_track a on begun.track_id = a.id
    join thread source on a.utid = source.utid
    join slice ended on flow.slice_in = ended.id join thread_track b on ended.track_id = b.id
    join thread target on b.utid = target.utid"""
_LANES = """select json_array(process.name, thread.name) row from thread join process using (upid)
    where thread.name is not null order by tid"""
_PHASES = """select json_array(thread.name, group_concat(slice.name, ' '), max(depth)) row from
    (select * from slice where category = 'phase' order by track_id, ts) slice
    join thread_track on slice.track_id = thread_track.id join thread using (utid) group by utid"""


@pytest.fixture
def perfetto() -> None:
    """Skip where the trace processor cannot run."""
    if what := trace_processor.missing():
        pytest.skip(what)


def test_messages_are_read_as_protocol_buffers_define_them() -> None:
    """If it fails, an answer is misread."""
    # The numbers 1 and 300, a text, four bytes and eight bytes.
    message = b"\x08\x01\x10\xac\x02\x1a\x02hi\x25abcd\x29abcdefgh"
    assert list(fields(message)) == [(1, b""), (2, b""), (3, b"hi"), (4, b"abcd"), (5, b"abcdefgh")]


def test_a_world_of_64_ranks_has_its_lanes_its_order_and_its_arrows(perfetto: None) -> None:
    """If it fails, Perfetto shows less of a large target than the trace says."""
    content = gzip.compress(trace([large_run()]), 6)
    assert len(content) < 4_000_000
    dropped, lanes, phases, arrows = ask(content, _DROPPED, _LANES, _PHASES, _ARROWS)
    assert dropped == []
    ranks = [f"rank {rank}" for rank in range(RANKS)]
    assert lanes == [["//a:a", name] for name in ["cases", *ranks]]
    assert sorted(phases) == sorted([rank, " ".join(PHASES * CASES), 0] for rank in ranks)
    assert sorted(arrows) == sorted([f"rank {CULPRIT}", rank] for rank in ranks if rank != f"rank {CULPRIT}")


def test_nothing_of_a_failed_case_is_dropped(perfetto: None, tmp_path: Path) -> None:
    """If it fails, Perfetto leaves out waits for GPUs, collective calls, marks or arrows."""
    bad = Case("t.py::bad", "failed", "rank 1 raised", "text", 4, "failure", 1, (0, 3), gpu_wait_s=0.5)
    path = write_stream(tmp_path / "e.jsonl", [Case("t.py::ok", world_size=2), bad], target="//a:a")
    bars = """select json_array(category, name, count(*)) row from slice where category != 'phase'
        group by category, name order by category, name"""
    dropped, lanes, others, phases, arrows = ask(trace(gather([path]).runs), _DROPPED, _LANES, bars, _PHASES, _ARROWS)
    assert dropped == []
    calls = [f"rank {rank}, collectives" for rank in (0, 3)]
    names = ["cases", "rank 0", calls[0], "rank 1", "rank 2", "rank 3", calls[1]]
    assert lanes == [["//a:a", name] for name in names]
    assert others == [
        ["case", "t.bad", 1],
        ["case", "t.ok", 1],
        ["collective", "all_reduce #1 of group 0", 2],
        ["collective", "broadcast #0 of group 0", 2],
        ["lease", "waiting for GPUs", 1],
        ["ledger", "waits in all_reduce #1 of the default group", 2],
        ["outcome", "culprit", 1],
        ["outcome", "victim", 2],
    ]
    assert ["rank 2", " ".join(PHASES), 0] in phases
    assert sorted(arrows) == [["rank 1", "rank 0"], ["rank 1", "rank 3"]]
