"""The ranks of a node as its relay sees them: their connections, and what they share in a world."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dist_testing.attach.line import Line
from dist_testing.attach.loop import Loop
from dist_testing.attach.relay_messages import (
    GIVE_UP_SIGNAL,
    Data,
    FileData,
    KeptFile,
    PartEnded,
    Phases,
    RankGone,
    Stream,
    to_text,
)
from dist_testing.core.engine.run_directory import RunDirectory
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.ground.layout import INTERFACE_VARIABLES
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.files import log_name, text_name
from dist_testing.core.process.messages import (
    ATTACHED_MESSAGES,
    ATTACHED_ORDERS,
    EndRun,
    Hello,
    PartOver,
    Refused,
    TakePart,
    Welcome,
)

_READ_BYTES = 1 << 18
# struct ucred of SO_PEERCRED: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")


class _Relay(Protocol):
    """The relay, for its ranks."""

    loop: Loop
    line: Line
    shift_s: float

    def admit(self, local: LocalRank, rank: int) -> None:
        """Greet a rank of this node."""

    def forget(self, local: LocalRank) -> None:
        """Forget a rank."""


class NodeWorld:
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


class LocalRank:
    """A rank of this node."""

    def __init__(self, relay: _Relay, connection: socket.socket) -> None:
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
        self._world: NodeWorld | None = None
        self._loop.watch(connection, self._read)
        self._loop.watch(self._pidfd, self.leave)

    @property
    def is_running(self) -> bool:
        """Whether the rank takes part in a world."""
        return bool(self._streams)

    def order(self, message: Welcome | Refused | EndRun) -> None:
        """Send an order without descriptors."""
        self._loop.send(self.connection, wire.frame(ATTACHED_ORDERS, message))

    def begin_part(self, order: TakePart, world: NodeWorld) -> None:
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
