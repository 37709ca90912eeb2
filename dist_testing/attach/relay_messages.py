"""The messages between the nodes of an attached world, and how each side proves that it has the token.

    rank 0  <-- Unix socket -->  hub  <-- TCP -->  relay  <-- Unix socket -->  rank 2
                                                          <-- Unix socket -->  rank 3
    `-------- node 0 --------------'           `-------------- node 1 -----------------'

The bytes of a rank's channel and of its stacks travel as base64. The clock of a relay is another one than rank 0's.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.spec import MAX_WORLD_SIZE
from dist_testing.core.process.messages import TakePart
from dist_testing.core.process.stacks import real_time_signal

_Rank = Annotated[int, range(1, MAX_WORLD_SIZE)]
_ExitCode = Annotated[int, range(256)]
Stream = Literal["channel", "stacks"]
KeptFile = Literal["log", "texts"]

# Tells a rank to give up its test. A real-time signal, as the one for stacks, because test code uses the others.
GIVE_UP_SIGNAL = real_time_signal(8)

# What a process without the token may send. Bytes.
_GREETING_BYTES = 4096
# An error shows so much of what cannot be read.
_SHOWN = 80
# Each side signs the other's number, and its own role, so that no answer can be sent back.
RELAY, HUB = "relay", "hub"


@dataclass(frozen=True, slots=True)
class Home:
    """Where the ranks find rank 0. Travels in the store of the world.

    Attributes:
        node: Key of rank 0's node, `RankInfo.node_key`.
        path: Rank 0's Unix socket, for the ranks of its node.
        address: Where the hub listens, for the other nodes; "" if there are none.
        port: Port of the hub.
        token: What a relay must have; "" if the environment of every rank holds it.
    """

    node: str
    path: str
    address: str = ""
    port: Annotated[int, range(1 << 16)] = 0
    token: str = ""


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """Where the ranks of a node find their relay, or why there is none. Travels in the store of the world."""

    path: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class HubTask:
    """What a hub is started for.

    Attributes:
        listener_fd: Its listening socket.
        path: Rank 0's Unix socket.
        token: The token.
    """

    listener_fd: Annotated[int, range(1 << 31)]
    path: str
    token: str


@dataclass(frozen=True, slots=True)
class RelayTask:
    """What a relay is started for.

    Attributes:
        address: Where the hub listens.
        port: Port of the hub.
        token: The token.
    """

    address: str
    port: Annotated[int, range(1 << 16)]
    token: str


@dataclass(frozen=True, slots=True)
class Challenge:
    """The hub's first message.

    Attributes:
        nonce: The relay must sign it.
        clock_s: The monotonic clock of rank 0's node.
    """

    nonce: str
    clock_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The relay's first message.

    Attributes:
        proof: The signed nonce of the hub.
        nonce: The hub must sign it.
        node: Host name of the node.
    """

    proof: str
    nonce: str
    node: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """The hub's proof."""

    proof: str


@dataclass(frozen=True, slots=True)
class RankHere:
    """A rank has connected to the relay."""

    rank: _Rank


@dataclass(frozen=True, slots=True)
class RankGone:
    """The process of a rank has ended; or, from the hub, rank 0 takes no more messages of it."""

    rank: _Rank


@dataclass(frozen=True, slots=True)
class RankRefused:
    """Rank 0 does not accept a rank. The text says why."""

    rank: _Rank
    text: str


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream, as base64; "" for its end."""

    rank: _Rank
    stream: Stream
    data: str


@dataclass(frozen=True, slots=True)
class Phases:
    """The part of a rank of the phase board, as base64, by rank 0's clock."""

    rank: _Rank
    data: str


@dataclass(frozen=True, slots=True)
class FileData:
    """What a rank has added to a file of its own, as base64. Not sent if the nodes share the folder of the run."""

    rank: _Rank
    file: KeptFile
    data: str


@dataclass(frozen=True, slots=True)
class PartEnded:
    """A rank's part is over, as in `PartOver`."""

    rank: _Rank
    exit_code: _ExitCode


@dataclass(frozen=True, slots=True)
class PartOrder:
    """An order to a rank to take part in a world."""

    order: TakePart


@dataclass(frozen=True, slots=True)
class SignalRank:
    """Send a signal to the process of a rank."""

    rank: _Rank
    number: Annotated[int, range(1, 65)]


@dataclass(frozen=True, slots=True)
class EndRank:
    """Let a rank end with this exit code."""

    rank: _Rank
    exit_code: _ExitCode


PLACES: Family[Home | RelayPlace] = Family("meeting point of an attached world", 1, (Home, RelayPlace))
TASKS: Family[HubTask | RelayTask] = Family("task of a relay", 1, (HubTask, RelayTask))
GREETINGS: Family[Challenge | Answer | Admitted] = Family(
    "greeting between nodes", 1, (Challenge, Answer, Admitted), max_bytes=_GREETING_BYTES
)
LineMessage: TypeAlias = (
    RankHere | RankGone | RankRefused | Data | Phases | FileData | PartEnded | PartOrder | SignalRank | EndRank
)
LINES: Family[LineMessage] = Family(
    "message between nodes",
    1,
    (RankHere, RankGone, RankRefused, Data, Phases, FileData, PartEnded, PartOrder, SignalRank, EndRank),
)


def why_refused(rank: int, problem: str) -> str:
    """Return the error for a process that rank 0 does not accept as a rank."""
    return (
        f"Rank {rank} was refused: {problem}.\n"
        "Two processes have the same rank, or they belong to different worlds.\n"
        "Start every rank once, by its launcher; set the launcher's variables in no script."
    )


def sign(token: str, role: str, nonce: str) -> str:
    """Return the proof that a side has the token."""
    return hmac.new(token.encode(), f"{role} {nonce}".encode(), "sha256").hexdigest()


def is_signed(proof: str, token: str, role: str, nonce: str) -> bool:
    """Return whether a proof is right. The time that it takes does not tell how much of it is."""
    return hmac.compare_digest(proof.encode(), sign(token, role, nonce).encode())


def to_text(data: bytes) -> str:
    """Return bytes as text for a message."""
    return base64.b64encode(data).decode()


def to_bytes(text: str) -> bytes:
    """Return the bytes that `to_text` has made a text of.

    Raises:
        MessageError: If it has not.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise LINES.refused(f"bytes that are no base64: {text[:_SHOWN]!r}") from error
