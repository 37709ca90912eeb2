"""The hub: a process beside rank 0 that speaks to the relays of the other nodes, and to rank 0 for each of their ranks.

It runs in a fresh interpreter that has imported little, so that a test on rank 0 that does not let go of the GIL does
not stop it. It ends with rank 0.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

from dist_testing.attach.line import Line, keep_alive
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
    FileData,
    HubTask,
    LineMessage,
    PartEnded,
    PartOrder,
    Phases,
    RankGone,
    RankHere,
    RankRefused,
    SignalRank,
    Stream,
    is_signed,
    sign,
    to_bytes,
    to_text,
    why_refused,
)
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.files import log_name, text_name
from dist_testing.core.process.messages import (
    ATTACHED_MESSAGES,
    ATTACHED_ORDERS,
    EndRun,
    Hello,
    Lost,
    PartOver,
    Refused,
    SignalPart,
    TakePart,
)

# Connections that have not proven yet that they have the token, and the limit for the proof. Seconds.
_MOST_GUESTS = 64
_GREETING_LIMIT_S = 10.0
_READ_BYTES = 1 << 18
# A file of a rank on another node. Bytes.
_MOST_FILE_BYTES = 64 << 20


class _RemoteRank:
    """One rank of another node: the connection to rank 0 on its behalf, and the descriptors of its part."""

    def __init__(self, node: _Node, rank: int, connection: socket.socket) -> None:
        self._node = node
        self._loop = node.loop
        self._rank = rank
        self._connection = connection
        self._streams: dict[Stream, socket.socket] = {}
        self._board: PhaseBoard | None = None
        self._files: dict[str, Path] = {}
        self._loop.watch(connection, self._read_order)

    def put(self, message: Data | Phases | FileData | PartEnded) -> None:
        """Pass on what the rank has sent."""
        match message:
            case Data(_, stream, data) if stream in self._streams:
                connection = self._streams[stream]
                if data:
                    self._loop.send(connection, to_bytes(data))
                else:
                    self._loop.send(connection, lambda: self._close_stream(stream, connection))
            case Phases(_, data) if self._board is not None:
                self._board.put(self._rank, to_bytes(data))
            case FileData(_, name, data) if name in self._files:
                _append(self._files[name], to_bytes(data))
            case PartEnded(_, exit_code):
                self._after_streams(lambda: self._say(PartOver(exit_code)))
            case _:
                # Of a part that rank 0 has ended already.
                pass

    def lose(self, reason: str) -> None:
        """Tell rank 0 that the rank is gone, after all that it has sent. `reason` is "" if its process has ended."""
        self._after_streams(lambda: self._leave(reason))

    def _after_streams(self, then: Callable[[], None]) -> None:
        channel = self._streams.get("channel")
        if channel is None:
            then()
        else:
            self._loop.send(channel, then)

    def _leave(self, reason: str) -> None:
        if reason:
            self._say(Lost(reason))
        self._loop.close(self._connection)
        self._end_part()

    def _say(self, message: PartOver | Lost) -> None:
        with contextlib.suppress(OSError):
            self._loop.send(self._connection, wire.frame(ATTACHED_MESSAGES, message))

    def _end_part(self) -> None:
        for connection in self._streams.values():
            self._loop.close(connection)
        self._streams = {}
        if self._board is not None:
            self._board.close()
            self._board = None

    def _close_stream(self, stream: Stream, connection: socket.socket) -> None:
        if self._streams.get(stream) is connection:
            del self._streams[stream]
        self._loop.close(connection)

    def _read_order(self) -> None:
        try:
            received = wire.receive(self._connection, ATTACHED_ORDERS)
        except (MessageError, OSError):
            received = None
        if received is None:
            self._loop.close(self._connection)
            self._end_part()
            self._node.forget(self._rank)
            return
        order, fds = received
        match order:
            case TakePart():
                self._begin_part(order, fds)
            case SignalPart(number):
                self._node.line.send(SignalRank(self._rank, number))
            case EndRun(exit_code):
                self._node.line.send(EndRank(self._rank, exit_code))
            case Refused(text):
                self._node.line.send(RankRefused(self._rank, text))
            case _:
                # Welcome: the relay has greeted the rank already.
                pass

    def _begin_part(self, order: TakePart, fds: list[int]) -> None:
        self._end_part()
        if len(fds) < 3:
            for fd in fds:
                os.close(fd)
            self.lose(f"rank 0's node has too few descriptors left for rank {self._rank}")
            return
        channel, stacks, board, *rest = fds
        for fd in rest:
            os.close(fd)
        self._streams = {"channel": socket.socket(fileno=channel), "stacks": socket.socket(fileno=stacks)}
        self._board = PhaseBoard(board, order.request.size)
        os.close(board)
        folder = Path(order.request.directory)
        self._files = {"log": folder / log_name(self._rank), "texts": folder / text_name(self._rank)}
        self._node.line.send(PartOrder(order))
        for name, connection in self._streams.items():
            connection.setblocking(False)
            self._loop.watch(connection, functools.partial(self._read_stream, name, connection))

    def _read_stream(self, stream: Stream, connection: socket.socket) -> None:
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._node.line.send(Data(self._rank, stream, to_text(data)))
        if not data:
            # The runner reads no more; what the rank still sends is dropped.
            self._close_stream(stream, connection)


class _Node:
    """Another node, after its relay has proven that it has the token."""

    def __init__(self, hub: Hub, connection: socket.socket, name: str) -> None:
        self.loop = hub.loop
        self._hub = hub
        self._name = name
        self._ranks: dict[int, _RemoteRank] = {}
        self.line = Line(hub.loop, connection, self._hear, self._over)

    def forget(self, rank: int) -> None:
        """Tell the relay that rank 0 takes no more messages of a rank."""
        if self._ranks.pop(rank, None) is not None:
            self.line.send(RankGone(rank))

    def _hear(self, message: LineMessage) -> None:
        match message:
            case RankHere(rank):
                try:
                    connection = self._hub.introduce(rank, self._name)
                except OSError as error:
                    # Rank 0 has all its ranks, or ends.
                    problem = f"rank 0 takes no more connections: {error.strerror}"
                    self.line.send(RankRefused(rank, why_refused(rank, problem)))
                else:
                    self._ranks[rank] = _RemoteRank(self, rank, connection)
            case RankGone(rank):
                if (gone := self._ranks.pop(rank, None)) is not None:
                    gone.lose("")
            case Data() | Phases() | FileData() | PartEnded():
                if (known := self._ranks.get(message.rank)) is not None:
                    known.put(message)
            case _:
                raise LINES.refused(f"{type(message).__name__} from a relay")

    def _over(self, reason: str) -> None:
        text = f"{self._name} does not answer: {reason}" if reason else f"{self._name}, or its relay, has ended"
        ranks, self._ranks = self._ranks, {}
        # All at the same moment; the first one is named. They are known in the order in which they came.
        for _, remote in sorted(ranks.items()):
            remote.lose(text)


class _Guest:
    """A connection of a process that may not have the token."""

    def __init__(self, hub: Hub, connection: socket.socket, host: str) -> None:
        self._hub = hub
        self._host = host
        self.connection = connection
        self.end_s = time.monotonic() + _GREETING_LIMIT_S
        self._nonce = secrets.token_hex(16)
        self._reader = wire.MessageReader(GREETINGS)
        hub.loop.watch(connection, self._read)
        hub.loop.send(connection, wire.frame(GREETINGS, Challenge(self._nonce, time.monotonic())))

    def _read(self) -> None:
        try:
            messages = list(self._reader.feed(self.connection.recv(_READ_BYTES) or b"\xff" * 8))
        except BlockingIOError:
            return
        except (MessageError, OSError):
            messages = [Admitted("")]
        if not messages:
            return
        answer = messages[0]
        token = self._hub.token
        if not isinstance(answer, Answer) or not is_signed(answer.proof, token, RELAY, self._nonce):
            self._hub.dismiss(self)
            return
        self._hub.loop.forget(self.connection)
        self._hub.admit(self, f"{answer.node} ({self._host})")
        self._hub.loop.send(self.connection, wire.frame(GREETINGS, Admitted(sign(token, HUB, answer.nonce))))


class Hub:
    """Accepts relays, and connects to rank 0 for each of their ranks."""

    def __init__(self, task: HubTask) -> None:
        self.loop = Loop()
        self.token = task.token
        self._path = task.path
        self._listener = socket.socket(fileno=task.listener_fd)
        self._listener.setblocking(False)
        self._guests: list[_Guest] = []
        self.loop.watch(self._listener, self._accept)

    def look(self) -> None:
        """Wait for the next thing to do, and do it."""
        next_s = min((guest.end_s for guest in self._guests), default=math.inf)
        self.loop.look(max(0.0, next_s - time.monotonic()))
        for guest in [guest for guest in self._guests if guest.end_s <= time.monotonic()]:
            self.dismiss(guest)

    def introduce(self, rank: int, name: str) -> socket.socket:
        """Connect to rank 0 for a rank of the node `name`.

        Raises:
            OSError: If rank 0 accepts no connection any more.
        """
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._path)
            wire.send(connection, ATTACHED_MESSAGES, Hello(rank, name))
        except OSError:
            connection.close()
            raise
        return connection

    def admit(self, guest: _Guest, name: str) -> None:
        """Take the connection of a guest as that of a node."""
        self._guests.remove(guest)
        _Node(self, guest.connection, name)

    def dismiss(self, guest: _Guest) -> None:
        """End the connection of a guest."""
        self._guests.remove(guest)
        self.loop.close(guest.connection)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, address = self._listener.accept()
            if len(self._guests) >= _MOST_GUESTS:
                # The oldest has had the most time.
                self.dismiss(self._guests[0])
            connection.setblocking(False)
            keep_alive(connection)
            self._guests.append(_Guest(self, connection, str(address[0])))


def serve(task: HubTask, life: int) -> None:
    """Be the hub until rank 0 has ended: then the descriptor `life` is readable."""
    hub = Hub(task)
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True

    hub.loop.watch(life, end)
    while not is_over:
        hub.look()


def _append(path: Path, data: bytes) -> None:
    """Add to a file of a rank. A test may have put something else in its place."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        fd = os.open(path, flags, 0o600)
        try:
            if os.fstat(fd).st_size < _MOST_FILE_BYTES:
                os.write(fd, data)
        finally:
            os.close(fd)
