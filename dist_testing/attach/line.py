"""The TCP connection of a bridge: from the process of a rank of another node to rank 0's, authenticated by a token.

What travels are frames: a kind, and bytes. Writes block until the other end has taken what came before; a node that
takes nothing is lost after some seconds.
"""

from __future__ import annotations

import array
import contextlib
import enum
import fcntl
import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.process import wire

# A node without power or network sends nothing. The kernel asks it after so many seconds of silence, again after each
# further interval, and gives up after so many questions.
_SILENCE_S = 2
_INTERVAL_S = 1
_QUESTIONS = 6
# The same for data that the other side does not acknowledge. Milliseconds.
_UNANSWERED_MS = 8000
# Limit for the connection, and for each message of the greeting. Seconds.
_GREETING_LIMIT_S = 10.0
# What a process without the token may send. Bytes.
_GREETING_BYTES = 4096
# Each end signs the other's number, and its own role, so that no answer can be sent back.
OUTPOST, HUB = "outpost", "hub"

# <linux/sockios.h>: asks for the IPv4 address of an interface, which begins at byte 20 of struct ifreq.
_SIOCGIFADDR = 0x8915
_IFREQ_BYTES = 40
_ADDRESS_IN_IFREQ = slice(20, 24)

READ_BYTES = 1 << 18
_HEADER = struct.Struct(">BI")


class Kind(enum.IntEnum):
    """What a frame carries."""

    JOINING = 1  # to rank 0: the process has a fork server
    ENDING = 2  # to the process
    ORDER = 3  # to the fork server
    EVENT = 4  # bytes of the fork server
    CHANNEL = 5  # bytes of the rank's channel; none for its end
    STACKS = 6  # a packet of its stacks' channel; none for its end
    PHASES = 7  # its part of the board, by rank 0's clock
    LOG = 8  # what it has added to its log
    TEXTS = 9  # what it has added to its file of long texts


@dataclass(frozen=True, slots=True)
class Challenge:
    """Rank 0's first message.

    Attributes:
        nonce: The other end must sign it.
        clock_s: The monotonic clock of rank 0's node.
    """

    nonce: str
    clock_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The other end's first message.

    Attributes:
        proof: The signed nonce of rank 0.
        nonce: Rank 0 must sign it.
        node: Host name of the node.
    """

    proof: str
    nonce: str
    node: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """Rank 0's proof."""

    proof: str


Greeting: TypeAlias = Challenge | Answer | Admitted
GREETINGS: Family[Greeting] = Family(
    "greeting between nodes", 2, (Challenge, Answer, Admitted), max_bytes=_GREETING_BYTES
)


def sign(token: str, role: str, nonce: str) -> str:
    """Return the proof that an end has the token."""
    return hmac.new(token.encode(), f"{role} {nonce}".encode(), "sha256").hexdigest()


def _is_signed(proof: str, token: str, role: str, nonce: str) -> bool:
    """Return whether a proof is right. The time that it takes does not tell how much of it is."""
    return hmac.compare_digest(proof.encode(), sign(token, role, nonce).encode())


def _greeting(connection: socket.socket) -> Greeting | None:
    received = wire.receive(connection, GREETINGS)
    return None if received is None else received[0]


def greet(connection: socket.socket, token: str) -> str:
    """Let the process at the other end of a connection prove that it has the token. Return the name of its node.

    Raises:
        MessageError: If it has sent something else.
        OSError: If it has said nothing in time.
        PermissionError: If it does not have the token.
    """
    keep_alive(connection)
    connection.settimeout(_GREETING_LIMIT_S)
    nonce = secrets.token_hex(16)
    wire.send(connection, GREETINGS, Challenge(nonce, time.monotonic()))
    answer = _greeting(connection)
    if not isinstance(answer, Answer) or not _is_signed(answer.proof, token, OUTPOST, nonce):
        raise PermissionError("no token")
    wire.send(connection, GREETINGS, Admitted(sign(token, HUB, answer.nonce)))
    connection.settimeout(None)
    return answer.node


def connect(address: str, port: int, token: str) -> tuple[socket.socket, float]:
    """Return a connection to rank 0's process, and what to add to this node's monotonic clock for that of rank 0's.

    Raises:
        LaunchError: If it cannot be reached, or one of the two does not have the token.
    """
    where = f"{address}:{port}"
    try:
        connection = socket.create_connection((address, port), timeout=_GREETING_LIMIT_S)
        keep_alive(connection)
        challenge = _greeting(connection)
        shift_s = 0.0
        nonce = secrets.token_hex(16)
        if isinstance(challenge, Challenge):
            shift_s = challenge.clock_s - time.monotonic()
            proof = sign(token, OUTPOST, challenge.nonce)
            wire.send(connection, GREETINGS, Answer(proof, nonce, socket.gethostname()))
        admitted = _greeting(connection)
    except (MessageError, OSError) as error:
        raise LaunchError(
            f"Node {socket.gethostname()} cannot reach rank 0's node at {where}: {str(error).partition(chr(10))[0]}.\n"
            "The address does not route, a firewall forbids it, or rank 0 has ended.\n"
            "Set DIST_TESTING_ADDRESS to an address of rank 0's machine that all nodes reach."
        ) from error
    if not isinstance(admitted, Admitted) or not _is_signed(admitted.proof, token, HUB, nonce):
        connection.close()
        raise LaunchError(
            f"Node {socket.gethostname()} and rank 0's node at {where} do not have the same token.\n"
            "DIST_TESTING_TOKEN differs between the nodes, or another program has the port.\n"
            "Set it to the same text for all ranks, or for none; then rank 0 makes one."
        )
    connection.settimeout(None)
    return connection, shift_s


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel end the connection when the other node does not answer, and send small messages at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _QUESTIONS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def interface_of(address: str) -> str:
    """Return the network interface of this machine that has an IPv4 address; "" if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            entry = array.array("B", name.encode().ljust(_IFREQ_BYTES, b"\0"))
            # Without an IPv4 address.
            with contextlib.suppress(OSError):
                fcntl.ioctl(asking, _SIOCGIFADDR, entry)
                if socket.inet_ntoa(entry[_ADDRESS_IN_IFREQ].tobytes()) == address:
                    return name
    return ""


class Loop:
    """Waits for sockets. Everything happens in one thread."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        # Readable when there is something to do.
        self.fileno = self._selector.fileno

    def watch(self, source: socket.socket, on_readable: Callable[[], object]) -> None:
        """Call a function whenever there is something to read, or the other end is closed."""
        self._selector.register(source, selectors.EVENT_READ, on_readable)

    def close(self, source: socket.socket) -> None:
        """Forget a socket and close it."""
        self._selector.unregister(source)
        source.close()

    def wait(self, limit_s: float | None = None) -> None:
        """Wait for the next thing to do, at most `limit_s` seconds, and do it."""
        for key, _ in self._selector.select(limit_s):
            # Else what came before it in this round has closed it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()


class Line:
    """The frames of a connection between two nodes.

    Attributes:
        connection: The connection.
        ended: Why it is over, such as "Connection reset by peer"; "" if the other end has closed it; None if it is not.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.ended: str | None = None
        self._buffer = bytearray()

    def send(self, kind: Kind, data: bytes = b"") -> None:
        """Send a frame; nothing if the connection is over."""
        if self.ended is None:
            try:
                self.connection.sendall(_HEADER.pack(kind, len(data)) + data)
            except OSError as error:
                self.ended = error.strerror or str(error)

    def receive(self) -> Iterator[tuple[Kind, bytes]]:
        """Read once, and yield the frames that are complete now.

        Raises:
            ValueError: If the other end has sent something else.
        """
        try:
            data = self.connection.recv(READ_BYTES)
        except OSError as error:
            self.ended = error.strerror or str(error)
            return
        if not data:
            self.ended = ""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield Kind(kind), payload


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send to a local process, which may have ended: who reads from it will see that."""
    with contextlib.suppress(OSError):
        connection.sendall(data)
