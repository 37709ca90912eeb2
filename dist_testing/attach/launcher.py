"""The launcher of an attached world: one fork server for each rank, below the process that torchrun has started.

    torchrun --- starts --->  process of rank 0 (the runner)  --- forks --->  fork server  --- forks --->  rank 0
             --- starts --->  process of rank 1               --- forks --->  fork server  --- forks --->  rank 1

Rank 0's process listens on a socket in the run's folder, which only this user can open, and puts its path into the
store of the world. Each other process connects, and hands over the connection to its own fork server. So a rank has
the control group, the binding and the environment that its launched process has, and the runner its exit code.

For each process of another node, the end of a bridge (`dist_testing.attach.bridge`) connects to the same socket.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from dist_testing.attach.absent import LOOK_S, ended_ranks
from dist_testing.attach.bridge import let_in
from dist_testing.attach.collected import COLLECTED_KEY, digest, to_text
from dist_testing.attach.line import interface_of
from dist_testing.attach.messages import (
    ENDINGS,
    JOININGS,
    PLACES,
    EndRun,
    Home,
    Joining,
    Lost,
    Refused,
    receive_joining,
    why_refused,
)
from dist_testing.attach.rank_info import ATTACH_LIMIT_S, RankInfo, own_listener
from dist_testing.attach.waiting import readable, saying_who_is_missing
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.ground.layout import INTERFACE_VARIABLES
from dist_testing.core.ground.outcomes import UNKNOWN_EXIT_CODE
from dist_testing.core.launch.fork import ForkServerClient, ForkServerLauncher
from dist_testing.core.launch.launcher import RunContext
from dist_testing.core.process import wire
from dist_testing.core.process.messages import (
    LauncherEvent,
    RankEnded,
    WorldOver,
    WorldRequest,
    WorldStarted,
)

# Key in the store of the `Home` of rank 0.
HOME_KEY = "home"
# A token that every rank has in its environment, so that it is not in the store.
TOKEN_VARIABLE = "DIST_TESTING_TOKEN"
# Limit for a bridge to pass on the last message. Seconds.
_CLOSE_LIMIT_S = 5.0


@dataclasses.dataclass(slots=True)
class _Peer:
    """The launched process of a rank from 1, and its fork server. For one of another node, both lead to a bridge."""

    connection: socket.socket
    control: socket.socket
    server: ForkServerClient
    node: str
    reader: wire.MessageReader[Joining | Lost]


class AttachedLauncher:
    """Asks the fork servers of all launched processes for the ranks of a world. One world at a time.

    Attributes:
        unclean_reasons: Why rank 0 is not forked from this process.
        gone: Ranks whose launched processes, or fork servers, have ended.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        run: RunContext,
        host: str,
        collected: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:
        """Wait until every launched process has connected, by a socket in the folder of the run.

        Args:
            rank_info: This process's place in the world.
            run: Facts of the run.
            host: This machine's address for the ranks of other nodes, if there are any.
            collected: Names of the tests that this process has collected.
            tell: Takes a line for the log.

        Raises:
            LaunchError: If a process does not connect in time.
        """
        self.gone: list[int] = []
        self._rank_info = rank_info
        self._host = host
        self._tell = tell
        # Where processes of other nodes connect.
        self._door: socket.socket | None = None
        # A request tells the ranks what has changed since now; the rest of their environment is their own.
        self._env = dict(os.environ)
        self._world = 0
        self._alive: set[int] = set()
        self._not_over: set[int] = set()
        self._leaked: list[str] = []
        self._pids: dict[int, int | None] = {}
        self._lost: dict[int, str] = {}
        self._peers: dict[int, _Peer] = {}
        self._epoll = select.epoll()
        # First, because a store that is served here has threads, and then this process could not be forked.
        self._own = ForkServerLauncher(run)
        self.unclean_reasons = self._own.unclean_reasons
        self._epoll.register(self._own, select.EPOLLIN)
        self._by_fd = {self._own.fileno(): 0}
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if rank_info.size > 1:
                self._meet(run, collected)
            undo.pop_all()
        # The nodes in the order of their first ranks.
        names = ["", *(self._peers[rank].node for rank in range(1, rank_info.size))]
        order = list(dict.fromkeys(names))
        self._places = tuple(order.index(name) for name in names)

    def _meet(self, run: RunContext, collected: Sequence[str]) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            path = os.path.join(run.temp, "ranks")
            listener.bind(path)
            listener.listen(self._rank_info.size)
            home = self._reachable(Home(self._rank_info.node_key, path, tuple(run.directories), digest(collected)))
            # Kept, because it may serve the store.
            self._store = self._rank_info.store()
            self._store.set(COLLECTED_KEY, to_text(collected))
            self._store.set(HOME_KEY, PLACES.to_wire(home).decode())
            with saying_who_is_missing(self._rank_info, self._missing, self._tell):
                self._admit(listener)

    def _reachable(self, home: Home) -> Home:
        """Listen for the processes of other nodes, if there are any, and add where."""
        if not self._rank_info.has_other_nodes:
            return home
        given = os.environ.get(TOKEN_VARIABLE, "")
        token = given or secrets.token_hex(16)
        self._door = own_listener(self._host, 0)
        address, port = self._door.getsockname()[:2]
        let_in(self._door, home.path, token)
        return dataclasses.replace(home, address=address, port=port, token="" if given else token)

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._rank_info.size) if rank not in self._peers]

    def _admit(self, listener: socket.socket) -> None:
        size = self._rank_info.size
        deadline_s = time.monotonic() + ATTACH_LIMIT_S
        while missing := self._missing():
            left_s = deadline_s - time.monotonic()
            if readable([listener.fileno()], min(left_s, LOOK_S)):
                self._welcome(listener.accept()[0])
            elif ended := ended_ranks(self._rank_info, missing):
                raise LaunchError(
                    f"Rank(s) {', '.join(map(str, ended))} of {size} ended before they connected.\n"
                    "An exit call in a test file, in conftest.py or in a module that they import, ended them "
                    "during the collection; torchrun reports no exit with code 0.\n"
                    "See the output of these ranks, and remove the exit call."
                )
            elif left_s <= 0:
                raise LaunchError(
                    f"Rank(s) {', '.join(map(str, missing))} of {size} did not connect within "
                    f"{ATTACH_LIMIT_S:.0f} s.\n"
                    "They run another program, or have not finished the collection of the tests.\n"
                    f"Start every rank by the same command, with {self._rank_info.launcher}."
                )

    def _welcome(self, connection: socket.socket) -> None:
        """Take the process at the other end as that of a rank, if it is one."""
        with contextlib.ExitStack() as undo:
            undo.enter_context(connection)
            try:
                received = receive_joining(connection)
            except MessageError as error:
                # It would be missed only when all others have waited for it for long, and without this reason.
                raise LaunchError(str(error)) from error
            if received is None:
                return
            joining, control = received
            undo.enter_context(control)
            rank = joining.rank
            if why := self._why_refused(rank):
                # The process may have ended by now.
                with contextlib.suppress(OSError):
                    wire.send(connection, ENDINGS, Refused(why_refused(rank, why)))
                return
            if joining.difference:
                self._tell(f"dist_testing: rank {rank} has not collected the tests of rank 0: {joining.difference}")
            text = f"the fork server of rank {rank} has ended"
            server = ForkServerClient(control, text, lambda event: None)
            self._peers[rank] = _Peer(connection, control, server, joining.node, wire.MessageReader(JOININGS))
            for one in (connection, control):
                self._by_fd[one.fileno()] = rank
                self._epoll.register(one, select.EPOLLIN)
            undo.pop_all()

    def _why_refused(self, rank: int) -> str:
        if not 0 < rank < self._rank_info.size:
            return f"rank 0 is in a world of {self._rank_info.size} ranks"
        if rank in self._peers:
            return f"it has connected already, from {self._peers[rank].node or 'the node of rank 0'}"
        return ""

    def fileno(self) -> int:
        """Return a descriptor for polling: readable when there are events."""
        return self._epoll.fileno()

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Ask every fork server for its rank of this world.

        Raises:
            LaunchError: If a launched process has ended, or a fork server cannot receive the whole request.
        """
        for _ in self.events():
            # Of an earlier world.
            continue
        if self.gone:
            raise LaunchError(self.exit_message())
        self._world = request.world
        self._alive, self._not_over = set(range(request.size)), set(range(request.size))
        self._leaked, self._pids = [], {}
        request = self._for_ranks(request)
        for rank in range(request.size):
            self._server(rank).start(*request.part(rank, fds))

    def _server(self, rank: int) -> ForkServerClient:
        return self._peers[rank].server if rank else self._own

    def _for_ranks(self, request: WorldRequest) -> WorldRequest:
        """Return the request with the places of the ranks, and with changes in place of the whole environment."""
        changed = {name: value for name, value in request.env.items() if self._env.get(name) != value}
        defaults: dict[str, str] = {}
        if self._door is not None:
            for name in INTERFACE_VARIABLES:
                # The default for one machine.
                if name not in os.environ:
                    changed.pop(name, None)
            # The process of another node replaces it by that of its own node.
            if interface := interface_of(self._host):
                defaults = dict.fromkeys(INTERFACE_VARIABLES, interface)
        removed = tuple(name for name in self._env if name not in request.env)
        return dataclasses.replace(
            request,
            env=changed,
            keeps_env=True,
            removed_env=removed,
            default_env=defaults,
            places=self._places,
            host=self._host,
        )

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of `ranks` that still run."""
        for rank in sorted(self._alive.intersection(ranks)):
            try:
                self._server(rank).signal([rank], number)
            except LaunchError:
                # Of another one, `events` tells the end.
                if rank == 0:
                    raise

    def events(self) -> Iterator[LauncherEvent]:
        """Yield what has happened since the last call.

        Raises:
            LaunchError: If the fork server of rank 0 has ended, or another one has sent what cannot be read.
        """
        for fd, _ in self._epoll.poll(0):
            rank = self._by_fd.get(fd)
            if rank == 0:
                yield from self._merged(0, self._own)
            elif rank is not None:
                yield from self._hear(rank, self._peers[rank], fd)

    def _hear(self, rank: int, peer: _Peer, fd: int) -> Iterator[LauncherEvent]:
        if fd == peer.control.fileno():
            try:
                yield from self._merged(rank, peer.server)
            except LaunchError as error:
                # If a bridge leads to it, the bridge tells why.
                if not peer.node:
                    yield from self._lose(rank, str(error).partition("\n")[0])
                    return
            else:
                return
        try:
            data = peer.connection.recv(1 << 16)
            for message in peer.reader.feed(data):
                if isinstance(message, Lost) and peer.node:
                    self._lost[rank] = message.reason
        except (MessageError, OSError):
            data = b""
        if not data:
            why = f"the process that {self._rank_info.launcher} started for it has ended"
            yield from self._lose(rank, self._lost.get(rank, why))

    def _merged(self, rank: int, server: ForkServerClient) -> Iterator[LauncherEvent]:
        """Yield the events of a fork server, with those about a whole world once for all servers."""
        for event in server.events():
            if event.world != self._world:
                continue
            match event:
                case WorldStarted():
                    is_here = rank == 0 or not self._peers[rank].node
                    self._pids[rank] = event.pids[0] if event.pids and is_here else None
                    pids = tuple(self._pids.get(number) for number in range(self._rank_info.size))
                    yield WorldStarted(self._world, pids)
                case WorldOver():
                    yield from self._over(rank, event.leaked)
                case RankEnded():
                    self._alive.discard(rank)
                    yield dataclasses.replace(event, rank=rank)
                case _:
                    yield event

    def _over(self, rank: int, leaked: Sequence[str] = ()) -> Iterator[LauncherEvent]:
        if rank in self._not_over:
            self._not_over.remove(rank)
            self._leaked += leaked
            if not self._not_over:
                yield WorldOver(self._world, tuple(self._leaked))

    def _lose(self, rank: int, reason: str) -> Iterator[LauncherEvent]:
        if rank in self.gone:
            return
        self.gone.append(rank)
        self._lost[rank] = reason
        peer = self._peers[rank]
        for one in (peer.connection, peer.control):
            del self._by_fd[one.fileno()]
            self._epoll.unregister(one)
        # If the fork server lives, it removes all that the rank has started.
        with contextlib.suppress(OSError):
            peer.control.shutdown(socket.SHUT_RDWR)
        if rank in self._alive:
            self._alive.remove(rank)
            yield RankEnded(self._world, rank, UNKNOWN_EXIT_CODE, reason)
        yield from self._over(rank)

    def dismiss(self, exit_code: int) -> None:
        """Let the other launched processes end with this exit code."""
        for rank, peer in self._peers.items():
            if rank not in self.gone:
                # The launcher may have ended it already.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    wire.send(peer.connection, ENDINGS, EndRun(exit_code))

    def close(self) -> None:
        """Close all connections. All fork servers, and the other launched processes, then end."""
        self._epoll.close()
        if self._door is not None:
            # Only this lets a thread that waits in accept() go on.
            self._door.shutdown(socket.SHUT_RDWR)
            self._door.close()
        for peer in self._peers.values():
            if peer.node:
                with contextlib.suppress(OSError):
                    # The bridge passes on what it has, and closes its end.
                    peer.connection.shutdown(socket.SHUT_WR)
                    peer.connection.settimeout(_CLOSE_LIMIT_S)
                    while peer.connection.recv(1 << 16):
                        continue
            peer.connection.close()
            peer.control.close()
        self._peers.clear()
        self._own.close()

    def exit_message(self) -> str:
        """Return the text about launched processes that have ended."""
        name = self._rank_info.launcher
        reasons = "".join(f" {reason}." for reason in dict.fromkeys(self._lost[rank] for rank in self.gone))
        return (
            f"The process(es) of rank(s) {', '.join(map(str, self.gone))} of {name}'s world are lost:{reasons}\n"
            "A world without one of its ranks cannot run a case.\n"
            f"{name}'s output below says how they ended; the first case that failed says what they were doing."
        )
