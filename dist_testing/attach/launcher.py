"""The launcher of an attached world: it sends its requests to the ranks that torchrun or another launcher has started.

    torchrun --- starts --->  rank 0 (the runner, too)  <--- Unix socket --->  rank 1, 2, ...

Rank 0 listens on a socket in the run's folder, which only this user can open, and puts its path into the store of the
world. From then on it asks for worlds as from the fork server: descriptors travel with the request, and frames come
back on them. Instead of killing a rank, it tells the rank to give up its test; the rank takes part in the next world.

For each rank of another node, the hub (`dist_testing.attach.hub`) connects to the same socket.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dist_testing.attach.absent import LOOK_S, Absent
from dist_testing.attach.guests import Guest, Peer, peer_of
from dist_testing.attach.helper import start_hub
from dist_testing.attach.line import interface_of
from dist_testing.attach.rank_info import ATTACH_LIMIT_S, RankInfo, own_listener
from dist_testing.attach.relay_messages import GIVE_UP_SIGNAL, PLACES, Home, HubTask, why_refused
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.ground.layout import INTERFACE_VARIABLES, LOOPBACK
from dist_testing.core.ground.outcomes import UNKNOWN_EXIT_CODE
from dist_testing.core.launch.launcher import RunContext
from dist_testing.core.process import wire
from dist_testing.core.process.messages import (
    ATTACHED_ORDERS,
    EndRun,
    Hello,
    LauncherEvent,
    Lost,
    PartOver,
    RankEnded,
    Refused,
    SignalPart,
    TakePart,
    Welcome,
    WorldOver,
    WorldRequest,
    WorldStarted,
)
from dist_testing.core.process.refusal import refusal
from dist_testing.core.rank.bootstrap import FAILED_EXIT_CODE

# Key in the store of the `Home` of rank 0.
HOME_KEY = "home"
# A token that every rank has in its environment, so that it is not in the store.
TOKEN_VARIABLE = "DIST_TESTING_TOKEN"


class AttachedLauncher:
    """Sends requests to the ranks of an attached world, of which this process is rank 0. One world at a time.

    Attributes:
        unclean_reasons: Always empty: nothing is forked.
        gone: Ranks whose processes have ended.
        lost: Rank to why the runner has lost it, for ranks of other nodes.
        own_end: The end of the connection for this process as a rank. That rank closes it, because it may still send
            in another thread when this launcher is closed.
    """

    unclean_reasons: Sequence[str] = ()

    def __init__(self, rank_info: RankInfo, run: RunContext, host: str = LOOPBACK) -> None:
        """Wait until every rank has connected, by a socket in the folder of the run.

        Args:
            rank_info: This process's place in the world.
            run: Facts of the run.
            host: This machine's address for the ranks of other nodes, if there are any.

        Raises:
            LaunchError: If a rank does not connect in time.
        """
        self.gone: list[int] = []
        self.lost: dict[int, str] = {}
        self._rank_info = rank_info
        self._host = host
        self._hub: subprocess.Popen[bytes] | None = None
        # A request tells the ranks what has changed since now; the rest of their environment is their own.
        self._env = dict(os.environ)
        self._world = 0
        self._running: set[int] = set()
        self._said: list[LauncherEvent] = []
        # Readable while there are events that did not come from a rank.
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        ours, self.own_end = socket.socketpair()
        self._peers = {0: Peer(ours, os.getpid())}
        self._by_fd: dict[int, int] = {}
        # Kept, because it may serve the store.
        self._store = rank_info.store() if rank_info.size > 1 else None
        if self._store is not None:
            with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as undo:
                undo.callback(self.own_end.close)
                undo.callback(self.close)
                path = os.path.join(run.temp, "ranks")
                listener.bind(path)
                listener.listen(rank_info.size)
                self._store.set(HOME_KEY, PLACES.to_wire(self._home(path)).decode())
                self._admit(listener, rank_info.size, run.directories)
                undo.pop_all()
        for rank, peer in self._peers.items():
            for fd in {peer.connection.fileno(), peer.pidfd} if rank else {peer.connection.fileno()}:
                self._by_fd[fd] = rank
                self._epoll.register(fd, select.EPOLLIN)
        # The nodes in the order of their first ranks.
        names = [self._peers[rank].node for rank in range(rank_info.size)]
        order = list(dict.fromkeys(names))
        self._places = tuple(order.index(name) for name in names)

    def _home(self, path: str) -> Home:
        """Return where the ranks find this one. Start the hub, if there are other nodes."""
        if not self._rank_info.has_other_nodes:
            return Home(self._rank_info.node_key, path)
        given = os.environ.get(TOKEN_VARIABLE, "")
        token = given or secrets.token_hex(16)
        with own_listener(self._host, 0) as listener:
            self._hub = start_hub(HubTask(listener.fileno(), path, token))
            address, port = listener.getsockname()[:2]
        return Home(self._rank_info.node_key, path, address, port, "" if given else token)

    def _admit(self, listener: socket.socket, size: int, directories: Sequence[str]) -> None:
        deadline_s = time.monotonic() + ATTACH_LIMIT_S
        absent = Absent(self._store, self._rank_info)
        # Read at the same time: a peer that sends half a message, or nothing, must not delay the others.
        guests: dict[int, Guest] = {}
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        try:
            while missing := [rank for rank in range(size) if rank not in self._peers]:
                left_s = deadline_s - time.monotonic()
                ready = poller.poll(1000 * min(max(0.0, left_s), LOOK_S))
                if not ready and (ended := absent.ended(missing)):
                    raise LaunchError(
                        f"Rank(s) {', '.join(map(str, ended))} of {size} ended before they connected.\n"
                        "An exit call in a test file, in conftest.py or in a module that they import, ended them "
                        "during the collection; torchrun reports no exit with code 0.\n"
                        "See the output of these ranks, and remove the exit call."
                    )
                if time.monotonic() > deadline_s:
                    raise LaunchError(
                        f"Rank(s) {', '.join(map(str, missing))} of {size} did not connect within "
                        f"{ATTACH_LIMIT_S:.0f} s.\n"
                        "They run another program, or have not finished the collection of the tests.\n"
                        f"Start every rank by the same command, with {self._rank_info.launcher}."
                    )
                for fd, _ in ready:
                    if fd == listener.fileno():
                        guest = Guest(listener.accept()[0])
                        guests[guest.connection.fileno()] = guest
                        poller.register(guest.connection, select.POLLIN)
                    elif (hello := guests[fd].hear()) is not None:
                        poller.unregister(fd)
                        self._welcome(hello, guests.pop(fd).connection, directories, size)
        finally:
            absent.close()
            for guest in guests.values():
                guest.connection.close()

    def _welcome(self, hello: Hello, connection: socket.socket, directories: Sequence[str], size: int) -> None:
        rank = hello.rank
        # The process may have ended by now.
        with contextlib.suppress(OSError):
            if 0 <= rank < size and rank not in self._peers:
                wire.send(connection, ATTACHED_ORDERS, Welcome(tuple(directories)))
                self._peers[rank] = Peer(connection, peer_of(connection)[0], hello.node)
                return
            if rank >= 0:
                wire.send(connection, ATTACHED_ORDERS, Refused(self._why_refused(rank, size)))
        connection.close()

    def _why_refused(self, rank: int, size: int) -> str:
        if rank >= size:
            return why_refused(rank, f"rank 0 is in a world of {size} ranks")
        first = self._peers[rank].node or "the node of rank 0"
        return why_refused(rank, f"it has connected already, from {first}")

    def fileno(self) -> int:
        """Return a descriptor for polling: readable when there are events."""
        return self._epoll.fileno()

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Ask every rank to be a rank of this world.

        Raises:
            LaunchError: If a rank has ended, or cannot receive the whole request. Then the world is unusable.
        """
        if self.gone:
            raise LaunchError(self.exit_message())
        size = request.size
        self._world = request.world
        request, removed = self._for_ranks(request)
        interface = interface_of(self._host) if self._hub is not None else ""
        # A relay replaces it by that of its own node.
        defaults = dict.fromkeys(INTERFACE_VARIABLES, interface) if interface else {}
        self._running = set(range(size))
        for rank, peer in self._peers.items():
            own = request.start_of(rank, fds, os.getpid()).fds
            try:
                wire.send(peer.connection, ATTACHED_ORDERS, TakePart(rank, request, removed, defaults), own)
            except (BrokenPipeError, ConnectionResetError):
                self._ended(rank)
            except OSError as error:
                # A part of it may have been sent, so the rank would not understand what follows.
                raise LaunchError(f"Rank {rank} of {size} can receive no more messages: {refusal(error)}") from error
        peers = [self._peers[rank] for rank in range(size)]
        self._say(WorldStarted(request.world, tuple(None if peer.node else peer.pid for peer in peers)))

    def _for_ranks(self, request: WorldRequest) -> tuple[WorldRequest, tuple[str, ...]]:
        """Return the request with the places of the ranks, and with changes in place of the whole environment."""
        changed = {name: value for name, value in request.env.items() if self._env.get(name) != value}
        if self._hub is not None:
            for name in INTERFACE_VARIABLES:
                # The default for one machine.
                if name not in os.environ:
                    changed.pop(name, None)
        removed = tuple(name for name in self._env if name not in request.env)
        return replace(request, env=changed, places=self._places, host=self._host), removed

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of `ranks` that still run their part; instead of SIGKILL, GIVE_UP_SIGNAL."""
        number = GIVE_UP_SIGNAL if number == signal.SIGKILL else number
        for rank in self._running.intersection(ranks):
            peer = self._peers[rank]
            # If it has ended, `events` will report that.
            with contextlib.suppress(ProcessLookupError, BrokenPipeError, ConnectionResetError):
                if peer.node:
                    wire.send(peer.connection, ATTACHED_ORDERS, SignalPart(number))
                else:
                    signal.pidfd_send_signal(peer.pidfd, number)

    def events(self) -> Iterator[LauncherEvent]:
        """Yield what has happened since the last call.

        Raises:
            LaunchError: If a rank has sent what cannot be read.
        """
        for fd, _ in self._epoll.poll(0):
            if fd != self._bell and (rank := self._by_fd.get(fd)) is not None:
                self._hear(rank, fd)
        said, self._said = self._said, []
        if said:
            os.eventfd_read(self._bell)
        yield from said

    def dismiss(self, exit_code: int) -> None:
        """Let the other ranks end with this exit code."""
        for rank, peer in self._peers.items():
            if rank and rank not in self.gone:
                # torchrun may have ended it already.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    wire.send(peer.connection, ATTACHED_ORDERS, EndRun(exit_code))

    def close(self) -> None:
        """Close all descriptors. The other ranks then end."""
        self._epoll.close()
        os.close(self._bell)
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        if self._hub is not None:
            assert self._hub.stdin is not None
            assert self._hub.stdout is not None
            self._hub.stdin.close()
            with self._hub.stdout as end:
                end.read()

    def exit_message(self) -> str:
        """Return the text about ranks that have ended."""
        name = self._rank_info.launcher
        lost = "".join(f" {reason}." for reason in dict.fromkeys(self.lost.values()))
        return (
            f"Rank(s) {', '.join(map(str, self.gone))} of {name}'s world have ended.{lost}\n"
            "A world without one of its ranks cannot run a case.\n"
            f"{name}'s output below says how they ended; the first case that failed says what they were doing."
        )

    def _hear(self, rank: int, fd: int) -> None:
        peer = self._peers[rank]
        if fd == peer.pidfd:
            self._ended(rank)
            return
        try:
            data = peer.connection.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self._ended(rank)
            return
        try:
            for message in peer.reader.feed(data):
                if isinstance(message, PartOver):
                    # It is 0 or not; the rank's report, on its channel, has told the rest.
                    self._part_over(rank, FAILED_EXIT_CODE if message.exit_code else 0)
                elif isinstance(message, Lost) and peer.node:
                    self.lost[rank] = message.reason
        except MessageError as error:
            raise LaunchError(f"Rank {rank} of {len(self._peers)}: {error}") from error

    def _ended(self, rank: int) -> None:
        if rank in self.gone:
            return
        self.gone.append(rank)
        peer = self._peers[rank]
        for fd in (peer.connection.fileno(), peer.pidfd):
            if self._by_fd.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        self._part_over(rank, UNKNOWN_EXIT_CODE)

    def _part_over(self, rank: int, exit_code: int) -> None:
        if rank not in self._running:
            return
        self._running.remove(rank)
        self._say(RankEnded(self._world, rank, exit_code, self.lost.get(rank, "")))
        if not self._running:
            self._say(WorldOver(self._world, ()))

    def _say(self, event: LauncherEvent) -> None:
        self._said.append(event)
        os.eventfd_write(self._bell, 1)
