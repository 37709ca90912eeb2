"""The two ends of a bridge between nodes: beside the runner, and in the process of a rank of another node.

    runner --- sockets ---  NearEnd  --- TCP ---  FarEnd  --- sockets --- fork server and rank
    `------ node 0 ----------------'              `------ node 1 ----------------------------'

The runner uses a fork server, the channel and the stacks of a rank of another node as those of its own node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path

from dist_testing.attach.attach_messages import MESSAGES, READ_BYTES, EndRun, Joining, Kind, Line, greet, set_limit
from dist_testing.attach.rank_info import interface_env, own_listener
from dist_testing.core.engine.rank_logs import open_regular
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.launch.fork import ForkServerLauncher
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.launcher_messages import (
    FORK_SERVER_ORDERS,
    ForkServerOrder,
    SignalRanks,
    WorldRequest,
    log_name,
    text_name,
)

# Between two looks at what a rank has written to the board and to its files. Seconds.
_TELL_S = 0.5
# Limit for the runner to read stacks, and at the end for all bridges to pass on the last message. Seconds.
_LIMIT_S = 5
_RANK_STREAMS = {Kind.CHANNEL: socket.SOCK_STREAM, Kind.STACKS: socket.SOCK_SEQPACKET}
_FILES = {Kind.LOG: log_name, Kind.TEXTS: text_name}


class _End:
    """What both ends do: they pass on the bytes of streams."""

    def __init__(self, connection: socket.socket, rank: int, streams: dict[Kind, socket.socket]) -> None:
        self._line = Line(connection)
        self._rank = rank
        self._streams = streams
        self._folder = Path()
        self._board: PhaseBoard | None = None

    def _step(self, limit_s: float | None) -> None:
        """Wait for what comes, at most `limit_s` seconds, and pass it on. Raises the errors of `Line`."""
        for source in wait([self._line.frames, *self._streams.values()], limit_s):
            if source is self._line.frames:
                self._take(*self._line.receive())
            # None, if what came before it in this round has closed it.
            for kind in [kind for kind, stream in self._streams.items() if stream is source]:
                self._read(kind)

    def _take(self, kind: Kind, data: bytes) -> None:
        raise NotImplementedError

    def _put(self, kind: Kind, data: bytes) -> None:
        """Write what the other end has read, if its stream is still open here."""
        if data:
            # Who reads from a process that has ended sees that.
            with contextlib.suppress(KeyError, OSError):
                try:
                    self._streams[kind].sendall(data)
                except BlockingIOError:
                    # The runner reads no stacks of a rank that it has stopped. The rank's end must not wait for that.
                    self._streams.pop(kind).close()
        elif kind in self._streams:
            self._streams.pop(kind).close()

    def _read(self, kind: Kind) -> bool:
        """Send what a stream has. Return whether it may have more."""
        try:
            data = self._streams[kind].recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._line.send(kind, data)
        if not data:
            # What still comes for it is dropped.
            self._streams.pop(kind).close()
        return bool(data)

    def close(self) -> None:
        """Close everything, so that others see the end."""
        self._end_world()
        for kind in tuple(self._streams):
            self._put(kind, b"")
        self._line.frames.close()

    def _end_world(self) -> None:
        for kind in _RANK_STREAMS:
            self._put(kind, b"")
        if self._board is not None:
            self._board.close()
            self._board = None


class NearEnd(_End):
    """The end beside the runner, in a thread of it."""

    def __init__(self, connection: socket.socket, rank: int, runner: socket.socket, control: socket.socket) -> None:
        super().__init__(connection, rank, {Kind.ENDING: runner, Kind.EVENT: control})

    def serve(self, node: str) -> str:
        """Work until the process of the rank has ended, or the runner takes no more of it. Return why it is lost."""
        try:
            while Kind.ENDING in self._streams:
                self._step(None)
        except (ConnectionError, EOFError):
            return f"its process on {node} has ended"
        except OSError as error:
            return f"{node} does not answer: {error.strerror or error}"
        except (MessageError, ValueError) as error:
            return f"the bridge to {node} has failed: {str(error).partition(chr(10))[0]}"
        return ""

    def _take(self, kind: Kind, data: bytes) -> None:
        if kind is Kind.EVENT or kind in _RANK_STREAMS:
            self._put(kind, data)
        elif self._board is not None and kind is Kind.PHASES:
            self._board.put(self._rank, data)
        elif self._board is not None and kind in _FILES:
            path = self._folder / _FILES[kind](self._rank)
            with contextlib.suppress(OSError), open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
                file.write(data)

    def _read(self, kind: Kind) -> bool:
        if kind is not Kind.EVENT:
            return super()._read(kind)
        received = wire.receive(self._streams[Kind.EVENT], FORK_SERVER_ORDERS)
        if received is None:
            # The runner has left; perhaps it has said why.
            if Kind.ENDING in self._streams:
                super()._read(Kind.ENDING)
            self._put(Kind.ENDING, b"")
            return False
        order, fds = received
        if isinstance(order, WorldRequest):
            self._end_world()
            self._folder = Path(order.directory)
            *streams, board = fds
            self._board = PhaseBoard(board, order.size)
            os.close(board)
            self._streams |= {kind: socket.socket(fileno=fd) for kind, fd in zip(_RANK_STREAMS, streams, strict=True)}
            set_limit(self._streams[Kind.STACKS], _LIMIT_S, socket.SO_SNDTIMEO)
        self._line.send(Kind.ORDER, FORK_SERVER_ORDERS.to_wire(order))
        return True


class Door:
    """Where processes of other nodes connect. A thread serves each of them that has the token.

    Attributes:
        lost: Rank to the reason why its bridge has ended.
    """

    def __init__(self, host: str, path: str, token: str) -> None:
        """Listen at an address. Each process that has the token joins the runner at the Unix socket `path`."""
        self.lost: dict[int, str] = {}
        self._path = path
        self._token = token
        self._bridges: list[threading.Thread] = []
        self._listener = own_listener(host, 0)
        self.address, self.port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="dist_testing-door", daemon=True).start()

    def close(self) -> None:
        """Let nobody else in, and wait until the bridges, which the runner has left, have passed on what they have."""
        # Only this lets a thread that waits in accept() go on.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        end_s = time.monotonic() + _LIMIT_S
        for bridge in self._bridges:
            bridge.join(max(0.0, end_s - time.monotonic()))

    def _accept(self) -> None:
        # Until the listener is closed.
        with contextlib.suppress(OSError):
            while True:
                connection, (host, *_) = self._listener.accept()
                threading.Thread(target=self._enter, args=(connection, host), daemon=True).start()

    def _enter(self, connection: socket.socket, host: str) -> None:
        received = None
        with connection:
            # A stranger, or a process that has ended.
            with contextlib.suppress(MessageError, OSError):
                greet(connection, self._token)
                received = wire.receive(connection, MESSAGES)
                set_limit(connection, 0)
            if received is None or not isinstance(received[0], Joining):
                return
            joining = dataclasses.replace(received[0], node=f"{received[0].node} ({host})")
            runner, (near, far) = socket.socket(socket.AF_UNIX), socket.socketpair()
            end = NearEnd(connection, joining.rank, runner, near)
        self._bridges.append(threading.current_thread())
        # The runner has ended, or admits nobody any more.
        with contextlib.suppress(OSError), contextlib.closing(end):
            runner.connect(self._path)
            with far:
                wire.send(runner, MESSAGES, joining, [far.fileno()])
            if reason := end.serve(joining.node):
                self.lost[joining.rank] = reason


class FarEnd(_End):
    """The end in the process of a rank of another node, beside the fork server of the rank."""

    def __init__(
        self, connection: socket.socket, rank: int, server: ForkServerLauncher, shift_s: float, own_folder: Path
    ) -> None:
        """`shift_s` turns this node's clock into that of rank 0's. The processes of the node share `own_folder`."""
        self._default_env = interface_env(connection.getsockname()[0])
        super().__init__(connection, rank, {Kind.EVENT: socket.socket(fileno=os.dup(server.fileno()))})
        self._server = server
        self._shift_s = shift_s
        self._own_folder = own_folder
        self._is_shared = True
        self._sent_bytes: dict[Kind, int] = {}
        self._messages = wire.MessageReader(MESSAGES)
        self._ending: EndRun | None = None

    def serve(self) -> EndRun:
        """Work until the runner's last message, and return it; a LaunchError if it or the fork server is lost."""
        try:
            while self._ending is None:
                self._step(_TELL_S if len(self._streams) > 1 else None)
                self._send_news()
        except (EOFError, MessageError, OSError, ValueError) as error:
            raise lost_runner(str(error).partition("\n")[0] or "it is closed") from error
        return self._ending

    def _take(self, kind: Kind, data: bytes) -> None:
        if kind is Kind.ORDER:
            order = FORK_SERVER_ORDERS.from_wire(data)
            if isinstance(order, SignalRanks):
                self._send_news()
            if isinstance(order, WorldRequest):
                self._begin_world(order)
            else:
                self._order(order)
        elif kind is Kind.ENDING:
            if not data:
                raise EOFError
            for message in self._messages.feed(data):
                self._ending = message if isinstance(message, EndRun) else None
        elif kind in _RANK_STREAMS:
            # A request for the ledger: the runner looks at the phases then.
            self._send_news()
            self._put(kind, data)

    def _begin_world(self, request: WorldRequest) -> None:
        """Ask the fork server for the rank, with the folders and the network interface of this node."""
        self._end_world()
        self._folder = Path(request.directory)
        # The name has random parts, so on another file system it does not exist.
        self._is_shared = self._folder.is_dir()
        env, temp = request.env, request.env.get("TMPDIR", "")
        if not self._is_shared:
            self._folder = self._own_folder / str(request.world)
            if temp and not os.path.isdir(temp):
                env = {**env, "TMPDIR": str(self._folder / "temp")}
            (self._folder / "temp").mkdir(parents=True, exist_ok=True)
        request = dataclasses.replace(request, directory=str(self._folder), env=env, default_env=self._default_env)
        with contextlib.ExitStack() as theirs:
            fds = []
            for kind, type_ in _RANK_STREAMS.items():
                self._streams[kind], far = socket.socketpair(socket.AF_UNIX, type_)
                fds.append(theirs.enter_context(far).fileno())
            board = PhaseBoard.create(request.size)
            theirs.callback(os.close, board)
            self._board = PhaseBoard(board, request.size)
            self._sent_bytes = dict.fromkeys(_FILES, 0)
            self._order(request, [*fds, board])

    def _order(self, order: ForkServerOrder, fds: Sequence[int] = ()) -> None:
        # If the fork server has ended, its control connection tells it.
        with contextlib.suppress(OSError):
            wire.send(self._streams[Kind.EVENT], FORK_SERVER_ORDERS, order, fds)

    def _end_world(self) -> None:
        super()._end_world()
        if not self._is_shared:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, kind: Kind) -> bool:
        if kind is Kind.EVENT:
            # All that the rank has sent before, by other descriptors, must arrive before.
            for other in _RANK_STREAMS:
                while other in self._streams and super()._read(other):
                    pass
            self._send_news()
        has_more = super()._read(kind)
        if Kind.EVENT not in self._streams:
            # Raises the error of a fork server that has ended.
            list(self._server.events())
        return has_more

    def _send_news(self) -> None:
        """Send what the rank has written to the board and to its files since the last time.

        A change of phase, or output, wakes nothing up. If this node goes down, the runner has the last ones.
        """
        if self._board is None:
            return
        self._line.send(Kind.PHASES, self._board.copy(self._rank, self._shift_s))
        for kind, name in _FILES.items():
            while not self._is_shared and (data := self._more_of(name(self._rank), self._sent_bytes[kind])):
                self._sent_bytes[kind] += len(data)
                self._line.send(kind, data)

    def _more_of(self, name: str, begin: int) -> bytes:
        with contextlib.suppress(OSError), open_regular(self._folder / name) as file:
            file.seek(begin)
            return file.read(READ_BYTES)
        return b""


def lost_runner(reason: str) -> LaunchError:
    """Return the error of a process that rank 0 has left without `EndRun`."""
    return LaunchError(
        f"The connection to rank 0 has ended before the run was over: {reason}.\n"
        "Rank 0 is the runner: without it no case can be started or reported. It has ended, or the network has.\n"
        "See the output of rank 0, and the launcher's message about its end."
    )
