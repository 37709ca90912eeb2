"""The file of a run's events: JSON, one event a line, compressed if its name ends in ".gz". Written, and read again.

What is known when the runner begins to wait is in the kernel's hands, so that it is there when the runner is killed. An
event that others follow at once waits for them: to compress and write each line alone takes as long as to make it.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dist_testing.error_text import shorten
from dist_testing.errors import ReportError
from dist_testing.events.cases import CaseJudged, CleanedUp, RankOutcomeKnown, RankPhases, RankWarned
from dist_testing.events.event import Event
from dist_testing.events.runs import StreamCut, TestReported
from dist_testing.events.wire import SCHEMA, event_of

__all__ = ["MAX_FILE_BYTES", "EventFile", "read_events"]

# Before compression: some 10,000 cases on 8 ranks. A run that goes on for ever must not fill a disk.
MAX_FILE_BYTES = 64 * 1024 * 1024
# More than `StreamCut` takes.
_ROOM_BYTES = 1024
# A line that is longer is written with shorter texts. Bytes, and characters of each text.
_LONG_LINE_BYTES = 256 * 1024
_SHORT_TEXT_CHARS = 32 * 1024
# What a reader takes: more than is ever written, and not the memory that a file of a few bytes can unpack to.
_MAX_READ_BYTES = 2 * MAX_FILE_BYTES
_CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
# gzip's format, for zlib.
_GZIP_WINDOW = 31
# 4.7 times smaller; the best level makes it 5.2, for twice the time.
_LEVEL = 1

# Other events follow at once: the last one of a case, at least.
_FOLLOWED = (RankPhases, RankWarned, RankOutcomeKnown, CaseJudged, CleanedUp)

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class EventFile:
    """A sink that writes events to a file."""

    def __init__(self, path: Path, limit_bytes: int = MAX_FILE_BYTES) -> None:
        """Make the file, or empty the one that is there.

        Args:
            path: Where; ".gz" at the end compresses.
            limit_bytes: How much it may hold before compression. The last line of a full file is `StreamCut`.

        Raises:
            OSError: If it cannot be made, or is neither a regular file nor a device.
        """
        # A pipe that is read by no one would hold this process.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(path, flags, 0o644)
        mode = os.fstat(self._fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            os.close(self._fd)
            raise OSError("it is neither a file nor a device")
        self._packer = zlib.compressobj(_LEVEL, wbits=_GZIP_WINDOW) if path.suffix == ".gz" else None
        self._limit_bytes = limit_bytes
        self._left_bytes = limit_bytes - _ROOM_BYTES
        self._is_broken = False
        self._waiting: list[bytes] = []

    def __call__(self, event: Event) -> None:
        """Write an event.

        Raises:
            OSError: If the disk is full. The file ends with the line before, or in the middle of this one.
        """
        if self._left_bytes < 0:
            return
        line = _line(event.to_wire())
        self._left_bytes -= len(line)
        if self._left_bytes < 0:
            line = _line(StreamCut(event.at_s, self._limit_bytes).to_wire())
        self._waiting.append(line)
        # Before the call of a test come its fixtures, and the call is told when it is over.
        if not (isinstance(event, _FOLLOWED) or (isinstance(event, TestReported) and event.when != "call")):
            self._flush(zlib.Z_SYNC_FLUSH)

    def close(self) -> None:
        """End the file.

        Raises:
            OSError: If the disk is full.
        """
        if self._fd < 0:
            return
        try:
            if not self._is_broken:
                self._flush(zlib.Z_FINISH)
        finally:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _flush(self, how: int) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        if self._packer is not None:
            data = self._packer.compress(data) + self._packer.flush(how)
        rest = memoryview(data)
        self._is_broken = True
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._is_broken = False


def _line(wire: dict[str, Any]) -> bytes:
    text = _encode(wire)
    if len(text) > _LONG_LINE_BYTES:
        text = _encode(_shortened(wire))
    return text.encode() + b"\n"


def _shortened(value: Any) -> Any:
    match value:
        case str():
            return shorten(value, _SHORT_TEXT_CHARS)
        case dict():
            return {name: _shortened(item) for name, item in value.items()}
        case list() | tuple():
            return [_shortened(item) for item in value]
    return value


def read_events(path: Path) -> list[Event]:
    """Read a file of events, compressed or not. A last line that was cut off is left out, and so are unknown kinds.

    Raises:
        ReportError: If the file cannot be read, is empty, is larger than any that is written, is no file of events, or
            is one of a newer schema.
    """
    events: list[Event] = []
    is_first = True
    for number, line in enumerate(_lines(path), 1):
        try:
            wire = json.loads(line)
            if is_first:
                _check_schema(path, wire)
                is_first = False
            event = event_of(wire)
        except (ValueError, RecursionError) as error:
            raise ReportError(
                f"{path}: line {number} is no event: {error}.\n"
                "The file was changed after it was written, or it is of another program.\n"
                "Name a file that dist_testing has written: events.jsonl.gz, or that of pytest's --dist-events."
            ) from None
        if event is not None:
            events.append(event)
    if is_first:
        raise ReportError(
            f"{path}: there is no event in it.\n"
            "The run was ended before it had written its first line.\n"
            "Run the target again, or leave the file out."
        )
    return events


def _check_schema(path: Path, wire: object) -> None:
    """The first event says how the others are to be read."""
    schema = wire.get("schema") if isinstance(wire, dict) and wire.get("event") == "run_started" else None
    if type(schema) is not int:
        raise ValueError('expected "run_started", with a number under "schema"')
    if schema > SCHEMA:
        raise ReportError(
            f"{path}: its schema is {schema}; this version of dist_testing reads up to {SCHEMA}.\n"
            "A newer version has written it.\n"
            "Read it with that version."
        )


def _lines(path: Path) -> Iterator[bytes]:
    """The complete lines of a file, unpacked."""
    size = 0
    rest = b""
    try:
        for data in _unpacked(path):
            size += len(data)
            if size > _MAX_READ_BYTES:
                raise ReportError(
                    f"{path}: more than {_MAX_READ_BYTES >> 20} MiB, unpacked.\n"
                    f"A file of events has at most {MAX_FILE_BYTES >> 20} MiB, so this is none.\n"
                    "Leave the file out."
                )
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
    except (OSError, zlib.error) as error:
        raise ReportError(
            f"{path}: cannot be read: {error}.\n"
            "It is not there, it is not compressed although its name ends in .gz, or it was damaged.\n"
            "Name a file that dist_testing has written, and copy it as it is."
        ) from error


def _unpacked(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        data = file.read(_CHUNK_BYTES)
        if not data.startswith(_GZIP) and path.suffix != ".gz":
            while data:
                yield data
                data = file.read(_CHUNK_BYTES)
            return
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        while data and not unpacker.eof:
            yield unpacker.decompress(data, _CHUNK_BYTES)
            data = unpacker.unconsumed_tail or file.read(_CHUNK_BYTES)
        yield unpacker.flush()
