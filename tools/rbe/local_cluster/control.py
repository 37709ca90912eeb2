"""The messages between commands and the supervisor: one JSON object each way, over a socket of this user alone."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any, cast

from local_cluster.errors import ClusterError
from local_cluster.places import Scratch

# Limit for an answer: a restart answers only when the part is ready again. Seconds.
ANSWER_LIMIT_S = 120.0
# Longest line. Bytes.
_MAX_BYTES = 1 << 20

Message = dict[str, Any]


def listen(scratch: Scratch) -> socket.socket:
    """Return the supervisor's socket, which does not block."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(scratch.control))
    os.chmod(scratch.control, 0o600)
    server.listen()
    server.setblocking(False)
    return server


def ask(scratch: Scratch, request: Mapping[str, Any]) -> Message:
    """Send a request and return the answer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_LIMIT_S)
            connection.connect(str(scratch.control))
            write(connection, request)
            answer = read(connection)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"the cluster's supervisor does not answer: {error}.",
            "It has ended, or hangs.",
            "`down` ends the rest of the cluster.",
        ) from error
    if "refused" in answer:
        raise ClusterError(*(str(part) for part in answer["refused"]))
    return answer


def read(connection: socket.socket) -> Message:
    """Return the next message.

    Raises:
        ValueError: If it is not a message.
        OSError: If the connection breaks.
    """
    with connection.makefile("rb") as stream:
        line = stream.readline(_MAX_BYTES)
    if not line.endswith(b"\n"):
        raise ValueError(f"a message that ends too early, or is longer than {_MAX_BYTES} bytes")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("a message that is not an object")
    return cast(Message, message)


def write(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message.

    Raises:
        OSError: If the connection breaks.
    """
    connection.sendall(json.dumps(message).encode() + b"\n")
