"""The messages between the process of rank 0, which is the runner, and those of the other ranks.

A process sends `Joining` once, with a descriptor: the connection to the fork server that makes its rank. From then on
the runner speaks with that fork server as with its own, and with the process only to end it.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.ground.spec import MAX_WORLD_SIZE
from dist_testing.core.process import wire

# Limit for the first message of a process that has connected. Seconds.
_JOINING_LIMIT_S = 5.0
# struct ucred of SO_PEERCRED: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class Home:
    """Where the other processes find that of rank 0. Travels in the store of the world.

    Attributes:
        node: Key of rank 0's node, `RankInfo.node_key`.
        path: Rank 0's Unix socket, for the processes of its node.
        directories: Folders of the run. Another process removes them if rank 0 cannot.
        collected: Digest of the tests that rank 0 has collected.
        address: Where it listens for the other nodes; "" if there are none.
        port: The port there.
        token: What they must have; "" if the environment of every rank holds it.
    """

    node: str
    path: str
    directories: tuple[str, ...]
    collected: str
    address: str = ""
    port: Annotated[int, range(1 << 16)] = 0
    token: str = ""


@dataclass(frozen=True, slots=True)
class Joining:
    """This process is ready to make its rank.

    Attributes:
        rank: From 1.
        difference: The first difference between the tests that it and rank 0 have collected; "" for none.
        node: Host name and address of another node; "" for that of rank 0.
    """

    rank: Annotated[int, range(MAX_WORLD_SIZE)]
    difference: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """The bridge to a process of another node has ended.

    Attributes:
        reason: Why, such as "node1 (10.0.0.2) does not answer".
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The process is not accepted. The text says why."""

    text: str


@dataclass(frozen=True, slots=True)
class EndRun:
    """End with this exit code: the run is over."""

    exit_code: Annotated[int, range(256)]


PLACES: Family[Home] = Family("meeting point of an attached world", 2, (Home,))
JOININGS: Family[Joining | Lost] = Family("message of a launched process", 3, (Joining, Lost))
Ending: TypeAlias = Refused | EndRun
ENDINGS: Family[Ending] = Family("message to a launched process", 6, (Refused, EndRun))


def receive_joining(connection: socket.socket) -> tuple[Joining, socket.socket] | None:
    """Wait for the message of a launched process that has connected, and return it with the fork server's connection.

    Returns None for anybody else, such as another user.

    Raises:
        MessageError: If it is a process of another version of this library.
    """
    if user_of(connection) != os.getuid():
        return None
    connection.settimeout(_JOINING_LIMIT_S)
    try:
        received = wire.receive(connection, JOININGS)
    except MessageError as error:
        if error.is_other_schema:
            raise
        return None
    except OSError:
        return None
    connection.settimeout(None)
    if received is None or not isinstance(received[0], Joining) or len(received[1]) != 1:
        return None
    return received[0], socket.socket(fileno=received[1][0])


def user_of(connection: socket.socket) -> int:
    """Return the id of the user at the other end of a Unix socket, as the kernel knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def why_refused(rank: int, problem: str) -> str:
    """Return the error for a process that is not accepted."""
    return (
        f"Rank {rank} was refused: {problem}.\n"
        "Two processes have the same rank, or they belong to different worlds.\n"
        "Start every rank once, by its launcher; set the launcher's variables in no script."
    )
