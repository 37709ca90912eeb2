"""Frames: how a rank talks to the runner. Length-prefixed JSON over a socket pair; never pickle.

A rank sends `ready` once, an `outcome` as soon as one is known (peers must not wait for a
teardown to learn of a failure), and `done` as the last thing before it leaves; in between, `warning` for what test code
warns of, and `end_session` if it wants no further test to run. What is read is not trusted: a rank is
test code, and test code goes wrong.

The runner answers a good outcome with an instruction (`dist_testing.process.wire`), when every rank has one: `next`,
with another case for the same world, or `finish`, which every rank answers with `done`; then comes `leave`, for
which the rank that serves the store waits. So no rank closes its connections, or the store, under one that still
needs them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from dist_testing.errors import FrameError

__all__ = ["MAX_FRAME_BYTES", "Frame", "FrameKind", "FrameReader", "FrameWriter"]

# A traceback with a big assertion fits; a rank that went mad does not fill the runner's memory.
MAX_FRAME_BYTES = 8 * 1024 * 1024

_LENGTH = struct.Struct(">I")

FrameKind = Literal["ready", "outcome", "warning", "end_session", "done"]
_FIELDS: dict[str, dict[str, type]] = {
    "ready": {},
    "outcome": {
        "kind": str,
        "phase": str,
        "reason": str,
        "summary": str,
        "text": str,
        "exit_code": int,
        "collateral": str,
        "operation": str,
        "types": str,
    },
    "warning": {"category": str, "text": str, "filename": str, "line_number": int},
    "end_session": {"reason": str},
    "done": {},
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One message, already checked: `fields` holds exactly the fields of its kind, with their types."""

    kind: FrameKind
    fields: dict[str, Any] = field(default_factory=dict)


class FrameWriter:
    """The rank's end. `send` blocks until the runner has room, and the runner always reads."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def send(self, frame: FrameKind, /, **fields: object) -> None:
        """Send one frame; the runner being gone is no error, since then nobody is left to tell."""
        payload = json.dumps({"frame": frame, **fields}).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.sendall(_LENGTH.pack(len(payload)) + payload)


class FrameReader:
    """The runner's end: fed with bytes as they come, gives whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def mid_frame(self) -> bool:
        """Whether bytes of an unfinished frame are waiting: at the end of the stream, a torn report."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes.

        Raises:
            FrameError: If the bytes are not a frame. Nothing after that can be trusted.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _parse(payload)


def _parse(payload: bytes) -> Frame:
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {payload[:80]!r}") from error
    kind = message.pop("frame", None) if isinstance(message, dict) else None
    expected = _FIELDS.get(kind) if isinstance(kind, str) else None
    if expected is None:
        raise FrameError(f"unknown frame {payload[:80]!r}")
    if message.keys() != expected.keys() or any(
        type(message[name]) is not expected_type for name, expected_type in expected.items()
    ):
        found = {name: type(value).__name__ for name, value in message.items()}
        raise FrameError(f"frame {kind!r} with {found}; expected { ({n: t.__name__ for n, t in expected.items()}) }")
    return Frame(kind, message)  # type: ignore[arg-type]  # a key of _FIELDS is a FrameKind
