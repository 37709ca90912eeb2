"""Writes and reads the file of a run's events: JSON, one event per line, compressed if its name ends in ".gz".

Each event goes to the kernel at once, so that it survives a kill of the runner.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dist_testing.core.events.event import SCHEMA, Event, EventStream, StreamCut, event_of
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import ReportError

# Limit before compression: about 10,000 cases on 8 ranks. A run without end must not fill a disk.
MAX_FILE_BYTES = 64 * 1024 * 1024
# Reserved for `StreamCut`, which needs less.
_ROOM_BYTES = 1024
# In a longer line, each text is shortened. Bytes, and characters of each text.
_LONG_LINE_BYTES = 256 * 1024
_SHORT_TEXT_CHARS = 32 * 1024
# Limit for a reader: more than is ever written, but a small file cannot unpack to all memory.
_MAX_READ_BYTES = 2 * MAX_FILE_BYTES
_GZIP = b"\x1f\x8b"
# Makes zlib use the gzip format.
_GZIP_WINDOW = 31
# This level makes files 4.7 times smaller. The best level reaches 5.2 in twice the time.
_LEVEL = 1

# Name of the file among the outputs that Bazel keeps. Each shard and run has its own folder.
_NAME = "events.jsonl.gz"

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class EventFile:
    """Writes events to a file. It is a sink."""

    def __init__(self, path: Path, limit_bytes: int = MAX_FILE_BYTES) -> None:
        """Make the file, or empty an existing one."""
        # Opening a pipe without a reader would block this process.
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

    def __call__(self, event: Event) -> None:
        """Write an event."""
        if self._left_bytes < 0:
            return
        line = _line(event.to_wire())
        self._left_bytes -= len(line)
        if self._left_bytes < 0:
            line = _line(StreamCut(event.at_s, self._limit_bytes).to_wire())
        self._write(line, zlib.Z_SYNC_FLUSH)

    def close(self) -> None:
        """Write the rest and close the file."""
        if self._fd < 0:
            return
        try:
            if not self._is_broken:
                self._write(b"", zlib.Z_FINISH)
        finally:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _write(self, data: bytes, how: int) -> None:
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


def keep_events(outputs: Path | None, events: EventStream, warn: Callable[[str], None]) -> Callable[[], None] | None:
    """Write the events of a run by Bazel to a file in a folder, and return what closes it; None if there is none."""
    if outputs is None:
        return None
    path = outputs / _NAME
    try:
        file = EventFile(path)
    except OSError as error:
        # The tests can still pass.
        warn(f"no events are kept: {path} cannot be written: {error}")
        return None
    events.subscribe(file, name=_NAME)

    def close() -> None:
        try:
            file.close()
        except OSError as error:
            # Only for the log: the file of warnings for Bazel is already written.
            print(f"WARNING: {_NAME} is not complete: {error}")

    return close


def read_events(path: Path) -> list[Event]:
    """Read a file of events, compressed or not. Ignores an incomplete last line, and unknown kinds.

    A ReportError refuses one that is unreadable, empty or too large, has other content, or has a newer schema.
    """
    return list(iterate_events(path))


def iterate_events(path: Path, *, is_brief: bool = False) -> Iterator[Event]:
    """Yield the events of a file one by one, until a damaged line raises ReportError.

    `is_brief` leaves out the ranks of cases that passed, which takes half of the time.
    """
    number = 0
    for number, line in enumerate(_lines(path), 1):
        try:
            wire = json.loads(line)
            if number == 1:
                _check_schema(path, wire)
            if is_brief and wire["event"] == "case" and wire["record"]["status"] == "passed":
                wire["record"].pop("ranks", None)
            event = event_of(wire)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ReportError(
                f"{path}: line {number} is not an event: {error}.\n"
                "The file was changed after it was written, or another program wrote it.\n"
                "Name a file that dist_testing has written: events.jsonl.gz, or the file of pytest's --dist-events."
            ) from None
        if event is not None:
            yield event
    if not number:
        raise ReportError(
            f"{path}: the file contains no event.\n"
            "The run was killed before it had written its first line.\n"
            "Run the target again, or leave the file out."
        )


def _check_schema(path: Path, wire: object) -> None:
    schema = wire.get("schema") if isinstance(wire, dict) and wire.get("event") == "run_started" else None
    if type(schema) is not int:
        raise ValueError('expected "run_started", with a number under "schema"')
    if schema != SCHEMA:
        raise ReportError(
            f"{path}: its schema is {schema}; this version of dist_testing reads {SCHEMA}.\n"
            f"{'A newer' if schema > SCHEMA else 'An older'} version has written it.\n"
            "Read it with that version, or run the tests again."
        )


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, unpacked."""
    size = 0
    try:
        with path.open("rb") as file:
            is_packed = path.suffix == ".gz" or file.peek(2).startswith(_GZIP)
            content = gzip.GzipFile(fileobj=file) if is_packed else file
            # With a limit, because a small file could unpack to one line that takes all memory.
            while line := content.readline(_MAX_READ_BYTES - size + 1):
                size += len(line)
                if size > _MAX_READ_BYTES:
                    raise ReportError(
                        f"{path}: more than {_MAX_READ_BYTES >> 20} MiB, unpacked.\n"
                        f"A file of events has at most {MAX_FILE_BYTES >> 20} MiB, so this is not one.\n"
                        "Leave the file out."
                    )
                if line.endswith(b"\n"):
                    yield line
    except EOFError:
        # The file was cut off: its runner was killed, or the disk is full.
        return
    except (OSError, zlib.error) as error:
        raise ReportError(
            f"{path}: cannot be read: {error}.\n"
            "The file does not exist, is not compressed although its name ends in .gz, or is damaged.\n"
            "Name a file that dist_testing has written, and copy it as it is."
        ) from error
