"""The two ends of a bridge between nodes: beside the runner, and in the process of a rank of another node.

    runner --- sockets ---  NearEnd  --- TCP ---  FarEnd  --- sockets --- fork server and rank
    `------ node 0 ----------------'              `------ node 1 ----------------------------'

The runner uses a fork server, the channel and the stacks of a rank of another node as those of its own node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import socket
import threading
from pathlib import Path

from dist_testing.attach.line import READ_BYTES, Kind, Line, Loop, greet, interface_of, send_all
from dist_testing.attach.messages import ENDINGS, JOININGS, Ending, Joining, Lost
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.ground.layout import INTERFACE_VARIABLES
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.files import log_name, text_name
from dist_testing.core.process.messages import FORK_SERVER_ORDERS, SignalRanks, WorldRequest

# Connections that have not proven yet that they have the token.
_MOST_GUESTS = 64
# A file of a rank on another node. Bytes.
_MOST_FILE_BYTES = 64 << 20
# Between two looks at what a rank has written to the board and to its files. Seconds.
_TELL_S = 0.5
_STREAMS = {Kind.CHANNEL: socket.SOCK_STREAM, Kind.STACKS: socket.SOCK_SEQPACKET}
_FILES = {Kind.LOG: log_name, Kind.TEXTS: text_name}


class _End:
    """What both ends do: they pass on the bytes of a rank's streams."""

    def __init__(self, line: Line) -> None:
        self.loop = Loop()
        self.line = line
        self._streams: dict[Kind, socket.socket] = {}
        self.loop.watch(line.connection, self._read_line)

    def _read_line(self) -> None:
        for kind, data in self.line.receive():
            if kind in _STREAMS:
                self._put(kind, data)
            else:
                self._hear(kind, data)

    def _hear(self, kind: Kind, data: bytes) -> None:
        raise NotImplementedError

    def _open(self, kind: Kind, connection: socket.socket) -> None:
        self._streams[kind] = connection
        self.loop.watch(connection, functools.partial(self._read, kind))

    def _put(self, kind: Kind, data: bytes) -> None:
        if kind in self._streams:
            if data:
                send_all(self._streams[kind], data)
            else:
                self.loop.close(self._streams.pop(kind))

    def _read(self, kind: Kind) -> bool:
        """Pass on what is there. Return whether there may be more."""
        try:
            data = self._streams[kind].recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.line.send(kind, data)
        if not data:
            # What still comes for it is dropped.
            self.loop.close(self._streams.pop(kind))
        return bool(data)

    def _close_streams(self) -> None:
        while self._streams:
            self.loop.close(self._streams.popitem()[1])


class NearEnd(_End):
    """The end beside the runner, in a thread of it."""

    def __init__(self, line: Line, rank: int, connection: socket.socket, control: socket.socket) -> None:
        super().__init__(line)
        self._rank = rank
        self._connection = connection
        self._control = control
        self._board: PhaseBoard | None = None
        self._folder: Path | None = None
        self._is_left = False
        self.loop.watch(connection, self._read_ending)
        self.loop.watch(control, self._read_order)

    def serve(self, node: str) -> None:
        """Work until the process of the rank has ended, or the runner takes no more of it."""
        reason = ""
        try:
            while self.line.ended is None and not self._is_left:
                self.loop.wait()
        except (MessageError, OSError, ValueError) as error:
            # This process has no descriptors left, or the other end has sent nonsense.
            reason = f"the bridge to {node} has failed: {str(error).partition(chr(10))[0]}"
        if self.line.ended:
            reason = f"{node} does not answer: {self.line.ended}"
        reason = reason or f"its process on {node} has ended"
        send_all(self._connection, wire.frame(JOININGS, Lost(reason)))
        self._close_streams()
        for one in (self.line.connection, self._connection, self._control):
            self.loop.close(one)

    def _hear(self, kind: Kind, data: bytes) -> None:
        if kind is Kind.EVENT:
            send_all(self._control, data)
        elif kind is Kind.PHASES and self._board is not None:
            self._board.put(self._rank, data)
        elif kind in _FILES and self._folder is not None:
            _append(self._folder / _FILES[kind](self._rank), data)

    def _read_ending(self) -> None:
        data = self._connection.recv(READ_BYTES)
        self._is_left = not data
        if data:
            self.line.send(Kind.ENDING, data)

    def _read_order(self) -> None:
        received = wire.receive(self._control, FORK_SERVER_ORDERS)
        if received is None:
            self._is_left = True
            return
        order, fds = received
        if isinstance(order, WorldRequest):
            self._close_streams()
            if self._board is not None:
                self._board.close()
            self._folder = Path(order.directory)
            *streams, board = fds
            self._board = PhaseBoard(board, order.size)
            os.close(board)
            for kind, fd in zip(_STREAMS, streams, strict=True):
                self._open(kind, socket.socket(fileno=fd))
        self.line.send(Kind.ORDER, FORK_SERVER_ORDERS.to_wire(order))


def let_in(listener: socket.socket, path: str, token: str) -> None:
    """Take connections of other nodes until the listener is closed, in threads of this process.

    Args:
        listener: Where they connect.
        path: The runner's Unix socket, to which a thread connects for each process that has the token.
        token: What they must have.
    """
    guests = threading.BoundedSemaphore(_MOST_GUESTS)

    def accept() -> None:
        while True:
            try:
                connection, (host, *_) = listener.accept()
            except OSError:
                return
            if guests.acquire(blocking=False):
                threading.Thread(target=enter, args=(connection, host), daemon=True).start()
            else:
                connection.close()

    def enter(connection: socket.socket, host: str) -> None:
        with contextlib.ExitStack() as until_joined:
            until_joined.callback(guests.release)
            # A stranger, or a process that has ended.
            with contextlib.suppress(MessageError, OSError), connection:
                node = f"{greet(connection, token)} ({host})"
                received = wire.receive(connection, JOININGS)
                if received is None or not isinstance(received[0], Joining):
                    return
                joining = dataclasses.replace(received[0], node=node)
                until_joined.close()
                near, far = socket.socketpair()
                runner = socket.socket(socket.AF_UNIX)
                runner.connect(path)
                with far:
                    wire.send(runner, JOININGS, joining, [far.fileno()])
                NearEnd(Line(connection), joining.rank, runner, near).serve(node)

    threading.Thread(target=accept, name="dist_testing-bridges", daemon=True).start()


class FarEnd(_End):
    """The end in the process of a rank of another node, beside the fork server of the rank."""

    def __init__(self, line: Line, rank: int, control: socket.socket, shift_s: float, own_folder: Path) -> None:
        """`shift_s` turns this node's clock into that of rank 0's. The processes of the node share `own_folder`."""
        super().__init__(line)
        self.fileno = self.loop.fileno
        self._rank = rank
        self._control = control
        self._shift_s = shift_s
        self._own_folder = own_folder
        self._interface = interface_of(line.connection.getsockname()[0])
        self._board: PhaseBoard | None = None
        self._folder = Path()
        self._is_shared = True
        self._sent_bytes: dict[Kind, int] = {}
        self._phases = b""
        self._ending = b""
        self.loop.watch(control, self._read_event)

    @property
    def pause_s(self) -> float | None:
        """Seconds after which there is something to do, whatever comes; None for never."""
        return _TELL_S if self._streams else None

    def poll(self) -> Ending | None:
        """Do what there is to do. Return the runner's last message, when it has come.

        Raises:
            LaunchError: If rank 0's node, or the fork server, is lost.
        """
        self.loop.wait(0)
        self._tell()
        for ending in wire.MessageReader(ENDINGS).feed(self._ending):
            return ending
        if self.line.ended is None:
            return None
        self._control.shutdown(socket.SHUT_RDWR)
        raise LaunchError(
            f"This node has lost the node of rank 0: {self.line.ended or 'the connection is closed'}.\n"
            "Rank 0 is the runner: without it no case can be started or reported. It has ended, or the network has.\n"
            "See the output of rank 0, and the launcher's message about its end."
        )

    def _hear(self, kind: Kind, data: bytes) -> None:
        if kind is Kind.ENDING:
            self._ending += data
        elif kind is Kind.ORDER:
            order = FORK_SERVER_ORDERS.from_wire(data)
            with contextlib.suppress(OSError):
                if isinstance(order, WorldRequest):
                    self._begin_part(order)
                else:
                    if isinstance(order, SignalRanks):
                        self._tell()
                    wire.send(self._control, FORK_SERVER_ORDERS, order)

    def _put(self, kind: Kind, data: bytes) -> None:
        if kind is Kind.STACKS:
            # A request for the ledger: the runner looks at the phases then.
            self._tell()
        super()._put(kind, data)

    def _begin_part(self, request: WorldRequest) -> None:
        """Ask the fork server for the rank, with the folders and the network interface of this node."""
        self._end_part()
        self._folder = Path(request.directory)
        # The name has random parts, so on another file system it does not exist.
        self._is_shared = self._folder.is_dir()
        env, temp = request.env, request.env.get("TMPDIR", "")
        if not self._is_shared:
            self._folder = self._own_folder / str(request.world)
            if temp and not os.path.isdir(temp):
                env = {**env, "TMPDIR": str(self._folder / "temp")}
            (self._folder / "temp").mkdir(parents=True, exist_ok=True)
        defaults = dict.fromkeys(INTERFACE_VARIABLES, self._interface) if self._interface else {}
        request = dataclasses.replace(request, directory=str(self._folder), env=env, default_env=defaults)
        with contextlib.ExitStack() as theirs:
            fds = []
            for kind, type_ in _STREAMS.items():
                near, far = socket.socketpair(socket.AF_UNIX, type_)
                self._open(kind, near)
                fds.append(theirs.enter_context(far).fileno())
            board = PhaseBoard.create(request.size)
            theirs.callback(os.close, board)
            self._board = PhaseBoard(board, request.size)
            self._phases, self._sent_bytes = b"", dict.fromkeys(_FILES, 0)
            wire.send(self._control, FORK_SERVER_ORDERS, request, [*fds, board])

    def _end_part(self) -> None:
        self._close_streams()
        if self._board is not None:
            self._board.close()
            self._board = None
        if not self._is_shared:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _read_event(self) -> None:
        try:
            data = self._control.recv(READ_BYTES)
        except OSError:
            data = b""
        # All that the rank has sent before, by other descriptors, must arrive before.
        for kind in _STREAMS:
            while kind in self._streams and self._read(kind):
                pass
        self._tell()
        if not data:
            raise LaunchError(
                f"The fork server of rank {self._rank} has ended.\n"
                "It runs no test code. Most likely the kernel killed it for lack of memory, or a test killed it.\n"
                "Look for an out-of-memory message of the kernel, and for a test that kills its parent process."
            )
        self.line.send(Kind.EVENT, data)

    def _tell(self) -> None:
        """Send what the rank has written to the board and to its files since the last time.

        A change of phase, or output, wakes nothing up. If this node goes down, the runner has the last ones.
        """
        if self._board is None:
            return
        phases = self._board.copy(self._rank, self._shift_s)
        if phases != self._phases:
            self._phases = phases
            self.line.send(Kind.PHASES, phases)
        for kind, name in _FILES.items():
            while not self._is_shared and (data := _read_from(self._folder / name(self._rank), self._sent_bytes[kind])):
                self._sent_bytes[kind] += len(data)
                self.line.send(kind, data)


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


def _read_from(path: Path, begin: int) -> bytes:
    """Return the next part of a file of a rank; b"" at its end, or if a test has put something else in its place."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            file.seek(begin)
            return file.read(READ_BYTES)
    except OSError:
        return b""
