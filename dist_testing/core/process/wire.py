"""Sends and receives messages over sockets: length-prefixed JSON with descriptors, never pickle.

A header precedes each message: the length of the JSON and the number of descriptors that follow it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from dist_testing.core.ground.codec import Family

_Message = TypeVar("_Message")

_HEADER = struct.Struct(">IH")
# The kernel takes at most 253 descriptors in one message (SCM_MAX_FD).
_FDS_PER_MESSAGE = 200
# Seconds to wait for receivers. Linux limits the descriptors in transit between all processes of a user to the sender's
# limit of open files. Receivers take theirs within milliseconds, but no event reports it.
_CROWD_LIMIT_S = 10.0
_CROWD_PAUSE_S = 0.01


def send(channel: socket.socket, family: Family[_Message], message: _Message, fds: Sequence[int] = ()) -> None:
    """Send one message and its descriptors. Blocks until the receiver has room.

    If the message cannot be written as JSON, that is a MessageError, and nothing is sent.
    """
    # A test file may have called `socket.setdefaulttimeout`, or set SIGPIPE to its default, which ends the process.
    channel.settimeout(None)
    channel.sendall(frame(family, message, len(fds)), socket.MSG_NOSIGNAL)
    for first in range(0, len(fds), _FDS_PER_MESSAGE):
        _send_fds(channel, fds[first : first + _FDS_PER_MESSAGE])


def frame(family: Family[_Message], message: _Message, fd_count: int = 0) -> bytes:
    """Return the bytes of one message, as they are sent before its `fd_count` descriptors."""
    payload = family.to_wire(message)
    return _HEADER.pack(len(payload), fd_count) + payload


def _send_fds(channel: socket.socket, fds: Sequence[int]) -> None:
    end_s = time.monotonic() + _CROWD_LIMIT_S
    while True:
        try:
            socket.send_fds(channel, [b"\0"], list(fds), socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS or time.monotonic() >= end_s:
                raise
            time.sleep(_CROWD_PAUSE_S)
        else:
            return


def receive(channel: socket.socket, family: Family[_Message]) -> tuple[_Message, list[int]] | None:
    """Wait for one message with its descriptors, and return both; None at the end of the stream.

    It is without any descriptors if this process may not open that many files.

    Raises:
        MessageError: If the bytes are no message of the family. Nothing that follows can be trusted.
    """
    # As in `send`. A limit of the socket itself (SO_RCVTIMEO) holds.
    channel.settimeout(None)
    header = _read(channel, _HEADER.size)
    if header is None:
        return None
    length, count = _HEADER.unpack(header)
    family.check_size(length)
    payload = _read(channel, length)
    if payload is None:
        return None
    message = family.from_wire(payload)
    fds = _receive_fds(channel, count, family)
    return None if fds is None else (message, fds)


def _receive_fds(channel: socket.socket, count: int, family: Family[_Message]) -> list[int] | None:
    fds: list[int] = []
    to_come = count
    while to_come > 0:
        data, more, flags, _ = socket.recv_fds(channel, 1, _FDS_PER_MESSAGE)
        for fd in more:
            # Python makes received descriptors inheritable, so programs that a test runs would inherit them.
            os.set_inheritable(fd, False)
        fds += more
        if not data:
            _close(fds)
            return None
        if not (more or flags & socket.MSG_CTRUNC):
            _close(fds)
            raise family.refused(f"a message without its {count} descriptors")
        # If this process has no room, the kernel closes the remaining descriptors of a part.
        to_come -= _FDS_PER_MESSAGE if flags & socket.MSG_CTRUNC else len(more)
    if len(fds) != count:
        _close(fds)
        return []
    return fds


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


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


class MessageReader(Generic[_Message]):
    """Reads messages without descriptors from pieces of a stream. The runner must never block on another process."""

    def __init__(self, family: Family[_Message]) -> None:
        self._family = family
        self._buffer = bytearray()

    @property
    def is_inside(self) -> bool:
        """Whether a part of a message has come. At the end of the stream, this message is torn."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[_Message]:
        """Yield the messages that `data` completes.

        Raises:
            MessageError: If the bytes are no message of the family. Nothing that follows can be trusted.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            length, count = _HEADER.unpack_from(self._buffer)
            self._family.check_size(length)
            if count:
                raise self._family.refused(f"a message with {count} descriptors; expected none")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield self._family.from_wire(payload)
