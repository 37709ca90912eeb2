"""The connections of rank 0 of an attached world."""

from __future__ import annotations

import os
import socket
import struct

from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.process import wire
from dist_testing.core.process.messages import ATTACHED_MESSAGES, Hello

# struct ucred of SO_PEERCRED: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")
# Much more than a rank's first message.
_HELLO_BYTES = 1 << 12


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the ids of process and user at the other end of a Unix socket, as the kernel knows them."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user


class Guest:
    """A connection that may or may not be a rank's."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._reader = wire.MessageReader(ATTACHED_MESSAGES)

    def hear(self) -> Hello | None:
        """Return the message; that of rank -1 if it is invalid or the peer has gone; None before the message."""
        nothing = Hello(-1)
        try:
            data = self.connection.recv(_HELLO_BYTES)
            if not data or peer_of(self.connection)[1] != os.getuid():
                return nothing
            messages = list(self._reader.feed(data))
        except MessageError as error:
            if error.is_other_schema:
                # It would be missed only when all others have waited for it for long, and without this reason.
                raise LaunchError(str(error)) from error
            return nothing
        except OSError:
            # Reset.
            return nothing
        if not messages:
            return None
        return messages[0] if isinstance(messages[0], Hello) else nothing


class Peer:
    """Rank 0's connection to the process of one rank; for a rank of another node, to the hub."""

    def __init__(self, connection: socket.socket, pid: int, node: str = "") -> None:
        self.connection = connection
        # For a rank of another node, the hub.
        self.pid = pid
        self.node = node
        self.pidfd = os.pidfd_open(pid)
        self.reader = wire.MessageReader(ATTACHED_MESSAGES)

    def close(self) -> None:
        """Close the connection. A rank that is served then ends."""
        self.connection.close()
        os.close(self.pidfd)
