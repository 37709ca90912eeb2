"""The relay: a process on each other node that speaks to rank 0's hub for the ranks of its node.

The first rank of a node that looks for it starts it, in a fresh interpreter of its own session: it must go on when that
rank dies, to report that. It ends when the last rank of the node, or the hub, has gone.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import secrets
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dist_testing.attach.line import Line, interface_of, keep_alive
from dist_testing.attach.loop import Loop
from dist_testing.attach.relay_messages import (
    GIVE_UP_SIGNAL,
    GREETINGS,
    HUB,
    LINES,
    RELAY,
    Admitted,
    Answer,
    Challenge,
    Data,
    EndRank,
    FileData,
    KeptFile,
    LineMessage,
    PartEnded,
    PartOrder,
    Phases,
    RankGone,
    RankHere,
    RankRefused,
    RelayTask,
    SignalRank,
    Stream,
    is_signed,
    sign,
    to_bytes,
    to_text,
    why_refused,
)
from dist_testing.engine.run_directory import RunDirectory
from dist_testing.errors import LaunchError, MessageError
from dist_testing.nodes.layout import INTERFACE_VARIABLES
from dist_testing.process import wire
from dist_testing.process.board import PhaseBoard
from dist_testing.process.files import log_name, text_name
from dist_testing.process.messages import (
    ATTACHED_MESSAGES,
    ATTACHED_ORDERS,
    EndRun,
    Hello,
    PartOver,
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


class _World:
    """What the ranks of this node share in a world: a board and, without a shared folder, a folder of its own."""

    def __init__(self, order: TakePart, own: RunDirectory) -> None:
        request = order.request
        self.number = request.world
        self.board_fd = PhaseBoard.create(request.size)
        self.board = PhaseBoard(self.board_fd, request.size)
        self.folder = Path(request.directory)
        # The name has random parts, so on another file system it does not exist.
        self.is_shared = self.folder.is_dir()
        self.temp = request.env.get("TMPDIR", "")
        if not self.is_shared:
            self.folder = own.path / str(request.world)
            (self.folder / "temp").mkdir(parents=True, exist_ok=True)
        if self.temp and not os.path.isdir(self.temp):
            temp = own.short / str(request.world) / "temp"
            temp.mkdir(parents=True, exist_ok=True)
            self.temp = str(temp)

    def adapt(self, order: TakePart, interface: str) -> TakePart:
        """Return the order with the folders and the network interface of this node."""
        env = {**order.request.env, **({"TMPDIR": self.temp} if self.temp else {})}
        defaults = dict.fromkeys(INTERFACE_VARIABLES, interface) if interface else {}
        return replace(order, request=replace(order.request, directory=str(self.folder), env=env), defaults=defaults)

    def close(self) -> None:
        """Release the board; remove the folder if only this node has it."""
        self.board.close()
        os.close(self.board_fd)
        if not self.is_shared:
            shutil.rmtree(self.folder, ignore_errors=True)


class _LocalRank:
    """A rank of this node."""

    def __init__(self, relay: Relay, connection: socket.socket) -> None:
        self.rank = 0
        self._relay = relay
        self._loop = relay.loop
        self.connection = connection
        pid, self._user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        self._pidfd = os.pidfd_open(pid)
        self._reader = wire.MessageReader(ATTACHED_MESSAGES)
        self._streams: dict[Stream, socket.socket] = {}
        self._sent_bytes: dict[KeptFile, int] = {}
        self._phases = b""
        self._world: _World | None = None
        self._loop.watch(connection, self._read)
        self._loop.watch(self._pidfd, self.leave)

    @property
    def is_running(self) -> bool:
        """Whether the rank takes part in a world."""
        return bool(self._streams)

    def order(self, message: Welcome | Refused | EndRun) -> None:
        """Send an order without descriptors."""
        self._loop.send(self.connection, wire.frame(ATTACHED_ORDERS, message))

    def begin_part(self, order: TakePart, world: _World) -> None:
        """Let the rank take part in a world."""
        self._close_streams()
        channel, its_channel = socket.socketpair()
        stacks, its_stacks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._streams = {"channel": channel, "stacks": stacks}
        self._world = world
        self._sent_bytes = {"log": 0, "texts": 0}
        self._phases = b""
        with its_channel, its_stacks:
            fds = [its_channel.fileno(), its_stacks.fileno(), world.board_fd]
            try:
                wire.send(self.connection, ATTACHED_ORDERS, order, fds)
            except OSError:
                self.leave()
                return
        for name, connection in self._streams.items():
            connection.setblocking(False)
            self._loop.watch(connection, functools.partial(self._read_stream, name, connection))

    def put(self, stream: Stream, data: bytes) -> None:
        """Pass on bytes of the runner; none for the end of the stream."""
        connection = self._streams.get(stream)
        if connection is None:
            return
        if stream == "stacks":
            # A request for the ledger: the runner looks at the phases then.
            self.tell()
        if data:
            self._loop.send(connection, data)
        else:
            self._close_stream(stream)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self.tell()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def forget_world(self) -> None:
        """Use the world of the last part no more: all ranks have ended their parts in it."""
        self._close_streams()
        self._world = None

    def give_up(self) -> None:
        """Let the rank give up its test, if it runs one."""
        if self.is_running:
            self.signal(GIVE_UP_SIGNAL)

    def tell(self) -> None:
        """Send what the rank has written to the board and to its files since the last time."""
        world = self._world
        if world is None:
            return
        phases = world.board.copy(self.rank, self._relay.shift_s)
        if phases != self._phases:
            self._phases = phases
            self._relay.line.send(Phases(self.rank, to_text(phases)))
        if world.is_shared:
            return
        names: dict[KeptFile, str] = {"log": log_name(self.rank), "texts": text_name(self.rank)}
        for name, file_name in names.items():
            while data := _read_from(world.folder / file_name, self._sent_bytes[name]):
                self._sent_bytes[name] += len(data)
                self._relay.line.send(FileData(self.rank, name, to_text(data)))

    def leave(self, *, tells: bool = True) -> None:
        """Forget the rank, whose process has ended or has closed its connection."""
        if self.connection.fileno() < 0:
            return
        if self.rank and tells:
            self._drain()
            self.tell()
            self._relay.line.send(RankGone(self.rank))
        self._close_streams()
        self._loop.close(self.connection)
        self._loop.forget(self._pidfd)
        os.close(self._pidfd)
        self._relay.forget(self)

    def _read(self) -> None:
        try:
            data = self.connection.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            messages = list(self._reader.feed(data))
        except BlockingIOError:
            return
        except (MessageError, OSError):
            data, messages = b"", []
        for message in messages:
            if isinstance(message, Hello) and not self.rank and self._user == os.getuid():
                self._relay.admit(self, message.rank)
            elif isinstance(message, PartOver) and self.rank:
                # All that the rank has sent before, which another descriptor carries, must arrive before.
                self._drain()
                self.tell()
                self._relay.line.send(PartEnded(self.rank, message.exit_code))
            else:
                data = b""
        if not data:
            self.leave()

    def _drain(self) -> None:
        for stream in tuple(self._streams):
            while (connection := self._streams.get(stream)) is not None and self._read_stream(stream, connection):
                pass

    def _read_stream(self, stream: Stream, connection: socket.socket) -> bool:
        """Pass on what is there. Return whether there may be more."""
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.tell()
        self._relay.line.send(Data(self.rank, stream, to_text(data)))
        if not data:
            self._close_stream(stream)
        return bool(data)

    def _close_stream(self, stream: Stream) -> None:
        connection = self._streams.pop(stream, None)
        if connection is not None:
            self._loop.close(connection)

    def _close_streams(self) -> None:
        for stream in tuple(self._streams):
            self._close_stream(stream)


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
        self._ranks: dict[int, _LocalRank] = {}
        self._strangers: list[_LocalRank] = []
        self._world: _World | None = None
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

    def admit(self, local: _LocalRank, rank: int) -> None:
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

    def forget(self, local: _LocalRank) -> None:
        """Forget a rank. The process ends with the last one."""
        if local in self._strangers:
            self._strangers.remove(local)
        elif self._ranks.get(local.rank) is local:
            del self._ranks[local.rank]
        self.is_over = self.is_over or (self._has_had_ranks and not self._ranks)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ProcessLookupError):
            connection, _ = self._listener.accept()
            self._strangers.append(_LocalRank(self, connection))

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

    def _world_of(self, order: TakePart) -> _World:
        if self._world is None or self._world.number != order.request.world:
            if self._world is not None:
                for local in self._ranks.values():
                    local.forget_world()
                self._world.close()
            self._world = _World(order, self._own)
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


def _read_from(path: Path, begin: int) -> bytes:
    """Return the next part of a file of a rank; b"" at its end, or if a test has put something else in its place."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as file:
        try:
            file.seek(begin)
            return file.read(_READ_BYTES)
        except OSError:
            return b""
