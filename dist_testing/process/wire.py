"""What the runner sends, to the template and to ranks: length-prefixed JSON, with descriptors beside it.

Both ends are this library, so a malformed message is a bug and not an input to be judged. What ranks send is another
matter: see `dist_testing.process.frames`.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["MessageReader", "WorldRequest", "receive", "send"]

_LENGTH = struct.Struct(">I")
# The kernel takes at most 253 descriptors in one message (SCM_MAX_FD).
_FDS_PER_MESSAGE = 200
# Linux limits what all processes of a user have under way together, to the sender's limit of open files. Whoever they
# are for takes them in milliseconds, but nothing tells when. Seconds.
_CROWD_LIMIT_S = 10.0
_CROWD_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class WorldRequest:
    """Everything that a world's ranks need to know and cannot inherit from the template, which is older than the case.

    Attributes:
        world: Number of the world in this run.
        size: Ranks to start.
        body: What the ranks run, in the words of the front door that resolves it.
        directory: The case's own folder: `rank-<r>.log` is made in it.
        env: The whole environment of a rank, apart from what differs from rank to rank.
        cwd: Working directory.
        umask: File mode creation mask.
        threads: Intra-op threads of a rank, at least 1; 0 leaves torch alone.
        pool: Whether the ranks stay for more cases, so that what a case leaves behind in them matters.
        fresh: Whether each rank is a fresh interpreter instead of a fork that runs on.
        together: Whether the ranks are threads of one process.
        debug_rank: The rank that gets the terminal; None if nobody debugs.
        store_port: Loopback port whose listening socket travels with the request; 0 for no store.
        lease_fds: How many descriptors, the last ones, keep the world's GPUs for it.
        settings: What the world is like: see `dist_testing.world.WorldSettings`.
    """

    world: int
    size: int
    body: dict[str, Any]
    directory: str
    env: dict[str, str]
    cwd: str
    umask: int
    threads: int
    pool: bool
    fresh: bool
    together: bool
    store_port: int
    settings: dict[str, Any] = field(default_factory=dict)
    debug_rank: int | None = None
    lease_fds: int = 0

    def to_message(self) -> dict[str, Any]:
        """The request as the template reads it."""
        return {"do": "start", **asdict(self)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> WorldRequest:
        """The other direction."""
        return cls(**{name: value for name, value in message.items() if name != "do"})


def send(channel: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message and the descriptors that belong to it."""
    payload = json.dumps({**message, "fds": len(fds)}).encode()
    channel.sendall(_LENGTH.pack(len(payload)) + payload)
    for first in range(0, len(fds), _FDS_PER_MESSAGE):
        _send_fds(channel, fds[first : first + _FDS_PER_MESSAGE])


def _send_fds(channel: socket.socket, fds: Sequence[int]) -> None:
    end_s = time.monotonic() + _CROWD_LIMIT_S
    while True:
        try:
            socket.send_fds(channel, [b"\0"], list(fds))
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS or time.monotonic() >= end_s:
                raise
            time.sleep(_CROWD_PAUSE_S)
        else:
            return


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Wait for one message with its descriptors; None at the end of the stream.

    There are no descriptors if this process may not open as many files.
    """
    header = _read(channel, _LENGTH.size)
    if header is None:
        return None
    (length,) = _LENGTH.unpack(header)
    payload = _read(channel, length)
    if payload is None:
        return None
    message = json.loads(payload)
    count = message.pop("fds")
    fds: list[int] = []
    to_come = count
    while to_come > 0:
        data, more, flags, _ = socket.recv_fds(channel, 1, _FDS_PER_MESSAGE)
        for fd in more:
            # Unlike all others that Python makes, received descriptors would go on into every program that a test runs.
            os.set_inheritable(fd, False)
        fds += more
        if not data:
            return None
        # Cut short by the kernel, which has closed the others.
        to_come -= _FDS_PER_MESSAGE if flags & socket.MSG_CTRUNC else len(more)
    if len(fds) < count:
        for fd in fds:
            os.close(fd)
        return message, []
    return message, fds


def _read(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            chunk = channel.recv(count - len(data))
        except ConnectionResetError:
            return None
        if not chunk:
            return None
        data += chunk
    return bytes(data)


class MessageReader:
    """Messages without descriptors, from bytes as they come: the runner must never block on the template."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the messages that `data` completes."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            message: dict[str, Any] = json.loads(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            message.pop("fds")
            yield message
