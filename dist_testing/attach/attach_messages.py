"""The messages between the process of rank 0, which is the runner, and those of the other ranks.

A process sends `Joining` once, with a descriptor: the connection to the fork server that makes its rank. From then on
the runner speaks with that fork server as with its own, and with the process only to end it.

Two nodes exchange frames, each a kind and bytes, on a TCP connection that a token authenticates. Writes
block until the other end has taken what came before; a node that takes nothing is lost after some seconds.
"""

from __future__ import annotations

import enum
import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Annotated, TypeAlias

from dist_testing.core.ground.codec import MAX_MESSAGE_BYTES, Family
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.spec import MAX_WORLD_SIZE

# Limit for the connection, and for each answer of the greeting. Seconds.
_GREETING_LIMIT_S = 10
# Each end signs the other's number, and its own role, so that no answer can be sent back.
OUTPOST, HUB = b"outpost", b"hub"
# Of a number, and of a signature.
_BYTES = 32
_CLOCK = struct.Struct(">d")
_TIME_LIMIT = struct.Struct("ll")

READ_BYTES = 1 << 18
# The largest frame is an order to the fork server.
_MOST_FRAME_BYTES = 1 + MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class Home:
    """Where the other processes find that of rank 0. Travels in the store of the world."""

    node: str  # `RankInfo.node_key` of rank 0
    path: str  # rank 0's Unix socket, for the processes of its node
    collected: tuple[str, ...]  # the tests that rank 0 has collected, in the order of their names
    address: str = ""  # where it listens for the other nodes; "" if there are none
    port: Annotated[int, range(1 << 16)] = 0
    token: str = ""  # what they must have; "" if the environment of every rank holds it

    def difference(self, rank: int, names: set[str]) -> str:
        """Return the first difference between the tests of a rank and those of rank 0; "" if there is none."""
        differing = sorted(names.symmetric_difference(self.collected))
        if not differing:
            return ""
        has, lacks = (rank, 0) if differing[0] in names else (0, rank)
        more = f" ({len(differing) - 1} more differ)" if len(differing) > 1 else ""
        return f"rank {has} has {differing[0]}, and rank {lacks} does not{more}"


@dataclass(frozen=True, slots=True)
class Joining:
    """This process is ready to make its rank."""

    rank: Annotated[int, range(MAX_WORLD_SIZE)]  # from 1
    difference: str = ""  # the first one between the tests that it and rank 0 have collected; "" for none
    node: str = ""  # host name of another node, to which its bridge adds the address; "" for the node of rank 0


@dataclass(frozen=True, slots=True)
class EndRun:
    """End with this exit code: the run is over. If the process is refused, `error` says why."""

    exit_code: Annotated[int, range(256)]
    error: str = ""


# A process reads `Home` first, so one of another version of this library fails there, with the reason.
Message: TypeAlias = Home | Joining | EndRun
MESSAGES: Family[Message] = Family("message of an attached world", 1, (Home, Joining, EndRun))


class Kind(enum.IntEnum):
    """What a frame carries."""

    ENDING = 1  # to the process: bytes of the runner's last message; none if the runner has ended
    ORDER = 2  # to the fork server
    EVENT = 3  # bytes of the fork server
    CHANNEL = 4  # bytes of the rank's channel; none for its end
    STACKS = 5  # a packet of its stacks' channel; none for its end
    PHASES = 6  # its part of the board, by rank 0's clock
    LOG = 7  # what it has added to its log
    TEXTS = 8  # what it has added to its file of long texts


class Line:
    """The frames of a connection, which it takes over. Its functions raise an OSError if the connection is lost."""

    def __init__(self, connection: socket.socket) -> None:
        self.frames = Connection(connection.detach())

    def send(self, kind: Kind, data: bytes = b"") -> None:
        """Send a frame."""
        self.frames.send_bytes(bytes([kind]) + data)

    def receive(self) -> tuple[Kind, bytes]:
        """Wait for a frame; an EOFError is the end of the connection, a ValueError something else than a frame."""
        frame = self.frames.recv_bytes(_MOST_FRAME_BYTES)
        return Kind(int.from_bytes(frame[:1], "big")), frame[1:]


def sign(token: str, role: bytes, number: bytes) -> bytes:
    """Return the proof that an end has the token."""
    return hmac.digest(token.encode(), role + number, "sha256")


def greet(connection: socket.socket, token: str) -> None:
    """Let the process at the other end of a connection prove that it has the token, else raise an OSError."""
    _prepare(connection)
    number = secrets.token_bytes(_BYTES)
    connection.sendall(number)
    answer = connection.recv(2 * _BYTES, socket.MSG_WAITALL)
    if not hmac.compare_digest(answer[_BYTES:], sign(token, OUTPOST, number)):
        raise PermissionError("no token")
    connection.sendall(sign(token, HUB, answer[:_BYTES]) + _CLOCK.pack(time.monotonic()))


def connect(address: str, port: int, token: str) -> tuple[socket.socket, float]:
    """Return a connection to rank 0's process, and what to add to this node's monotonic clock for that of rank 0's."""
    where = f"{address}:{port}"
    own = secrets.token_bytes(_BYTES)
    try:
        connection = socket.create_connection((address, port), timeout=_GREETING_LIMIT_S)
        connection.settimeout(None)
        _prepare(connection)
        number = connection.recv(_BYTES, socket.MSG_WAITALL)
        connection.sendall(own + sign(token, OUTPOST, number))
        answer = connection.recv(_BYTES + _CLOCK.size, socket.MSG_WAITALL)
    except OSError as error:
        raise LaunchError(
            f"Node {socket.gethostname()} cannot reach rank 0's node at {where}: {error.strerror or error}.\n"
            "The address does not route, a firewall forbids it, or rank 0 has ended.\n"
            "Set DIST_TESTING_ADDRESS to an address of rank 0's machine that all nodes reach."
        ) from error
    proof, clock = answer[:_BYTES], answer[_BYTES:]
    if len(clock) < _CLOCK.size or not hmac.compare_digest(proof, sign(token, HUB, own)):
        connection.close()
        raise LaunchError(
            f"Node {socket.gethostname()} and rank 0's node at {where} do not have the same token.\n"
            "DIST_TESTING_TOKEN differs between the nodes, or another program has the port.\n"
            "Set it to the same text for all ranks, or for none; then rank 0 makes one."
        )
    set_limit(connection, 0)
    return connection, _CLOCK.unpack(clock)[0] - time.monotonic()


def _prepare(connection: socket.socket) -> None:
    """Send small messages at once, and have the kernel end the connection when the other node does not answer.

    A node without power or network sends nothing. The kernel asks it after 2 s of silence, again after each further
    second, and gives up after 6 questions, or when data have not been acknowledged for 8 s.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 2),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, 6),
        (socket.TCP_USER_TIMEOUT, 8000),
        (socket.TCP_NODELAY, 1),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    set_limit(connection, _GREETING_LIMIT_S)


def set_limit(connection: socket.socket, limit_s: float, what: int = socket.SO_RCVTIMEO) -> None:
    """Limit the time that a read of a connection waits; 0 for no limit. Python's own limit is none for MSG_WAITALL."""
    connection.setsockopt(socket.SOL_SOCKET, what, _TIME_LIMIT.pack(int(limit_s), int(limit_s % 1 * 1e6)))
