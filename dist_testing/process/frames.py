"""Sends a rank's messages to the runner."""

from __future__ import annotations

import contextlib
import socket

from dist_testing.process import wire
from dist_testing.process.rank_messages import RANK_MESSAGES, RankMessage

__all__ = ["FrameWriter"]


class FrameWriter:
    """The rank's end of its channel. `send` blocks until the runner has room, and the runner always reads."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def send(self, message: RankMessage) -> None:
        """Send one message. If the runner is gone, do nothing, because no process needs the message."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.send(self._channel, RANK_MESSAGES, message)
