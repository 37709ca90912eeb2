"""The relay: a process on each other node that speaks to rank 0's hub for the ranks of its node.

The first rank of a node that looks for it starts it, in a fresh interpreter of its own session: it must go on when that
rank dies, to report that. It ends when the last rank of the node, or the hub, has gone.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import socket
import struct
import time
from collections.abc import Callable

from dist_testing.attach.line import Line, interface_of, keep_alive
from dist_testing.attach.local_rank import LocalRank, NodeWorld
from dist_testing.attach.loop import Loop
from dist_testing.attach.relay_messages import (
    GREETINGS,
    HUB,
    LINES,
    RELAY,
    Admitted,
    Answer,
    Challenge,
    Data,
    EndRank,
    LineMessage,
    PartOrder,
    RankGone,
    RankHere,
    RankRefused,
    RelayTask,
    SignalRank,
    is_signed,
    sign,
    to_bytes,
    why_refused,
)
from dist_testing.core.engine.run_directory import RunDirectory
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.process import wire
from dist_testing.core.process.messages import (
    EndRun,
    Refused,
    TakePart,
    Welcome,
)

# Limit for the connection to the hub and for its greeting. Seconds.
_CONNECT_LIMIT_S = 30.0
# Limit for the last messages to leave, at the end. Seconds.
_LAST_WORDS_S = 2.0
# Between two looks at what ranks have written to the board and to their files. Seconds.
_TELL_S = 0.5
_READ_BYTES = 1 << 18
# struct ucred of SO_PEERCRED: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")


class Relay:
    """Speaks to the hub for the ranks of a node.

    Attributes:
        shift_s: What to add to this node's monotonic clock for that of rank 0's node; too small by the time that a
            message needs.
    """

    def __init__(self, task: RelayTask, own: RunDirectory) -> None:
        """Connect to the hub.

        Raises:
            LaunchError: If it cannot be reached, or one of the two does not have the token.
        """
        self.loop = Loop()
        self._own = own
        self.path = str(own.short / "relay")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(socket.SOMAXCONN)
        self._listener.setblocking(False)
        connection, self.shift_s = _connect(task)
        self._interface = interface_of(connection.getsockname()[0])
        self._ranks: dict[int, LocalRank] = {}
        self._strangers: list[LocalRank] = []
        self._world: NodeWorld | None = None
        self._has_had_ranks = False
        self.is_over = False
        self.line = Line(self.loop, connection, self._hear, self._lose_hub)
        self.loop.watch(self._listener, self._accept)

    def close(self) -> None:
        """Let the last messages leave, and end."""
        if self.line.is_open:
            self.loop.drain(self.line.connection, _LAST_WORDS_S)
        if self._world is not None:
            self._world.close()

    def look(self) -> None:
        """Wait for the next thing to do, and do it."""
        running = [local for local in self._ranks.values() if local.is_running]
        self.loop.look(_TELL_S if running else math.inf)
        for local in running:
            # A change of phase, or output, wakes nothing up. If this node goes down, the runner has the last ones.
            local.tell()

    def starter_has_gone(self) -> None:
        """End if the rank that has started this process died before any rank has connected."""
        self.is_over = self.is_over or not self._has_had_ranks

    def admit(self, local: LocalRank, rank: int) -> None:
        """Greet a rank of this node."""
        if rank == 0 or rank in self._ranks:
            local.order(Refused(why_refused(rank, "it has connected already, from the same node")))
            local.leave()
            return
        self._strangers.remove(local)
        local.rank = rank
        self._ranks[rank] = local
        self._has_had_ranks = True
        local.order(Welcome(tuple(self._own.all_paths)))
        self.line.send(RankHere(rank))

    def forget(self, local: LocalRank) -> None:
        """Forget a rank. The process ends with the last one."""
        if local in self._strangers:
            self._strangers.remove(local)
        elif self._ranks.get(local.rank) is local:
            del self._ranks[local.rank]
        self.is_over = self.is_over or (self._has_had_ranks and not self._ranks)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ProcessLookupError):
            connection, _ = self._listener.accept()
            self._strangers.append(LocalRank(self, connection))

    def _hear(self, message: LineMessage) -> None:
        if isinstance(message, PartOrder):
            local = self._ranks.get(message.order.rank)
            if local is not None:
                world = self._world_of(message.order)
                local.begin_part(world.adapt(message.order, self._interface), world)
            return
        local = self._ranks.get(message.rank)
        if local is None:
            return
        match message:
            case Data(_, stream, data):
                local.put(stream, to_bytes(data))
            case SignalRank(_, number):
                local.signal(number)
            case EndRank(_, exit_code):
                local.order(EndRun(exit_code))
            case RankRefused(_, text):
                local.order(Refused(text))
                local.leave(tells=False)
            case RankGone():
                local.leave(tells=False)
            case _:
                raise LINES.refused(f"{type(message).__name__} from the hub")

    def _world_of(self, order: TakePart) -> NodeWorld:
        if self._world is None or self._world.number != order.request.world:
            if self._world is not None:
                for local in self._ranks.values():
                    local.forget_world()
                self._world.close()
            self._world = NodeWorld(order, self._own)
        return self._world

    def _lose_hub(self, reason: str) -> None:
        text = (
            f"This node has lost the node of rank 0: {reason or 'the connection is closed'}.\n"
            "Rank 0 is the runner: without it no case can be started or reported. It has ended, or the network has.\n"
            "See the output of rank 0, and the launcher's message about its end."
        )
        for local in (*self._ranks.values(), *self._strangers):
            # The rank reads orders only between its parts.
            local.order(Refused(text))
            local.give_up()
            local.leave(tells=False)
        self.is_over = True


def serve(task: RelayTask, life: int, ready: Callable[[str, str], None]) -> None:
    """Be the relay of this node until it has no ranks.

    Args:
        task: Where the hub is.
        life: A descriptor that is readable when the rank that has started this process has ended.
        ready: Takes the path of the socket for the ranks and ""; or "" and why there is none.
    """
    # Launchers signal the group of processes of the rank that has started this one. It ends with its ranks.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = RunDirectory(os.environ)
    try:
        try:
            relay = Relay(task, own)
        except (LaunchError, OSError) as error:
            ready("", str(error))
            return
        ready(relay.path, "")

        def starter_has_gone() -> None:
            relay.loop.forget(life)
            relay.starter_has_gone()

        relay.loop.watch(life, starter_has_gone)
        while not relay.is_over:
            relay.look()
        relay.close()
    finally:
        own.remove()


def _connect(task: RelayTask) -> tuple[socket.socket, float]:
    """Return the connection to the hub, and the shift of the clock."""
    where = f"{task.address}:{task.port}"
    try:
        connection = socket.create_connection((task.address, task.port), timeout=_CONNECT_LIMIT_S)
        keep_alive(connection)
        challenge = _greeting(connection)
        shift_s = 0.0
        nonce = secrets.token_hex(16)
        if isinstance(challenge, Challenge):
            shift_s = challenge.clock_s - time.monotonic()
            proof = sign(task.token, RELAY, challenge.nonce)
            wire.send(connection, GREETINGS, Answer(proof, nonce, socket.gethostname()))
        admitted = _greeting(connection)
    except (MessageError, OSError) as error:
        raise LaunchError(
            f"Node {socket.gethostname()} cannot reach rank 0's node at {where}: {str(error).partition(chr(10))[0]}.\n"
            "The address does not route, a firewall forbids it, or rank 0 has ended.\n"
            "Set DIST_TESTING_ADDRESS to an address of rank 0's machine that all nodes reach."
        ) from error
    if not isinstance(admitted, Admitted) or not is_signed(admitted.proof, task.token, HUB, nonce):
        connection.close()
        raise LaunchError(
            f"Node {socket.gethostname()} and rank 0's node at {where} do not have the same token.\n"
            "DIST_TESTING_TOKEN differs between the nodes, or another program has the port.\n"
            "Set it to the same text for all ranks, or for none; then rank 0 makes one."
        )
    connection.settimeout(None)
    connection.setblocking(False)
    return connection, shift_s


def _greeting(connection: socket.socket) -> object:
    received = wire.receive(connection, GREETINGS)
    return None if received is None else received[0]
