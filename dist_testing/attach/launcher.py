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
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait

from dist_testing.attach.attach_messages import MESSAGES, EndRun, Home, Joining, set_limit
from dist_testing.attach.bridge import Door
from dist_testing.attach.rank_info import ATTACH_LIMIT_S, RankInfo, interface_env
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.ground.layout import INTERFACE_VARIABLES
from dist_testing.core.ground.outcomes import UNKNOWN_EXIT_CODE
from dist_testing.core.launch.fork import ForkServerClient, ForkServerLauncher
from dist_testing.core.launch.launcher import RunContext
from dist_testing.core.process import wire
from dist_testing.core.process.launcher_messages import LauncherEvent, RankEnded, WorldOver, WorldRequest, WorldStarted

# Key in the store of the `Home` of rank 0.
HOME_KEY = "home"
# $DIST_TESTING_TOKEN (user): secret of an attached world; set the same text on every rank to keep it out of the store
# (default: rank 0 makes one and puts it into the store).
TOKEN_VARIABLE = "DIST_TESTING_TOKEN"
# Limit for the first message of a process that has connected. Seconds.
_JOINING_LIMIT_S = 5.0


@dataclasses.dataclass(slots=True)
class _Peer:
    """The launched process of a rank from 1. For one of another node, both connections lead to a bridge."""

    connection: socket.socket  # to the process, which sends nothing more: readable when it has ended
    control: socket.socket  # to its fork server
    node: str  # host name and address of another node; "" for this node


class _World:
    """What is known of the current world: ranks that may run, ranks of which something may be left, and pids."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.alive = set(range(size))
        self.not_over = set(range(size))
        self.leaked: list[str] = []
        self.pids: list[int | None] = [None] * size


class AttachedLauncher:
    """Asks the fork servers of all launched processes for the ranks of a world. One world at a time."""

    def __init__(
        self, rank_info: RankInfo, run: RunContext, host: str, collected: Sequence[str], log_line: Callable[[str], None]
    ) -> None:
        """Wait until every launched process has connected, by a socket in the folder of the run.

        Other nodes reach this machine at `host`. `collected` has the names of this process's tests.
        """
        # Ranks whose launched processes, or fork servers, have ended, each with the reason.
        self.gone: dict[int, str] = {}
        # The other launched processes will end with it. At first that of a run that was stopped.
        self.exit_code = 2
        self._rank_info = rank_info
        self._host = host
        self._log_line = log_line
        # Where processes of other nodes connect.
        self._door: Door | None = None
        # A request tells the ranks what has changed since now; the rest of their environment is their own.
        self._env = dict(os.environ)
        self._world = _World(0, 0)
        self._peers: dict[int, _Peer] = {}
        # With the rank of each connection.
        self._selector = selectors.EpollSelector()
        # First, because a store that is served here has threads, and then this process could not be forked.
        self._own = ForkServerLauncher(run)
        self.unclean_reasons = self._own.unclean_reasons
        self._selector.register(self._own, selectors.EVENT_READ, 0)
        self._servers: dict[int, ForkServerClient] = {0: self._own}
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
            home = Home(self._rank_info.node_key, path, tuple(sorted(collected)))
            if self._rank_info.has_other_nodes:
                token = os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(16)
                self._door = door = Door(self._host, path, token)
                told = "" if token == os.environ.get(TOKEN_VARIABLE) else token
                home = dataclasses.replace(home, address=door.address, port=door.port, token=told)
            # Kept, because it may serve the store.
            self._store = self._rank_info.store()
            self._store.set(HOME_KEY, MESSAGES.to_wire(home).decode())
            with self._rank_info.saying_who_is_missing(self._missing, self._log_line):
                self._admit(listener)

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._rank_info.size) if rank not in self._peers]

    def _admit(self, listener: socket.socket) -> None:
        deadline_s = time.monotonic() + ATTACH_LIMIT_S
        while missing := self._missing():
            if not wait([listener], max(0.0, deadline_s - time.monotonic())):
                raise LaunchError(
                    f"Rank(s) {', '.join(map(str, missing))} of {self._rank_info.size} did not connect within "
                    f"{ATTACH_LIMIT_S:.0f} s.\n"
                    "They run another program, have ended, or have not finished the collection of the tests.\n"
                    f"Start every rank by the same command, with {self._rank_info.launcher}."
                )
            self._welcome(listener.accept()[0])

    def _welcome(self, connection: socket.socket) -> None:
        """Take the process at the other end as that of a rank, if it is one."""
        with contextlib.ExitStack() as undo:
            undo.enter_context(connection)
            set_limit(connection, _JOINING_LIMIT_S)
            # It may have been killed while it connected.
            with contextlib.suppress(MessageError, OSError):
                joining, fds = wire.receive(connection, MESSAGES) or (None, [])
                if not isinstance(joining, Joining) or len(fds) != 1:
                    return
                set_limit(connection, 0)
                control = undo.enter_context(socket.socket(fileno=fds[0]))
                rank = joining.rank
                size, other = self._rank_info.size, self._peers.get(rank)
                if other or not 0 < rank < size:
                    where = f"from {other.node or 'the node of rank 0'}" if other else ""
                    why = f"it has connected already, {where}" if other else f"rank 0 is in a world of {size} ranks"
                    error = (
                        f"Rank {rank} was refused: {why}.\n"
                        "Two processes have the same rank, or they belong to different worlds.\n"
                        "Start every rank once, by its launcher; set the launcher's variables in no script."
                    )
                    wire.send(connection, MESSAGES, EndRun(2, error))
                    return
                if joining.difference:
                    self._log_line(
                        f"dist_testing: rank {rank} has not collected the tests of rank 0: {joining.difference}"
                    )
                why = f"the fork server of rank {rank} has ended"
                self._servers[rank] = ForkServerClient(control, why, lambda event: None)
                self._peers[rank] = _Peer(connection, control, joining.node)
                for one in (connection, control):
                    self._selector.register(one, selectors.EVENT_READ, rank)
                undo.pop_all()

    def fileno(self) -> int:
        """Return a descriptor for polling: readable when there are events."""
        return self._selector.fileno()

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Ask every fork server for its rank of this world; a LaunchError if one cannot make it any more."""
        for _ in self.events():
            # Of an earlier world.
            continue
        if self.gone:
            raise LaunchError(self.exit_message())
        self._world = _World(request.world, request.size)
        request = self._for_ranks(request)
        for rank in range(request.size):
            self._servers[rank].start(*_part(request, rank, fds))

    def _for_ranks(self, request: WorldRequest) -> WorldRequest:
        """Return the request with the places of the ranks, and with changes in place of the whole environment."""
        changed = {name: value for name, value in request.env.items() if self._env.get(name) != value}
        defaults: dict[str, str] = {}
        if self._door is not None:
            # Those that the user has not set have the default for one machine.
            for name in set(INTERFACE_VARIABLES).difference(os.environ):
                changed.pop(name, None)
            # The process of another node replaces it by that of its own node.
            defaults = interface_env(self._host)
        return dataclasses.replace(
            request,
            env=changed,
            keeps_env=True,
            removed_env=tuple(name for name in self._env if name not in request.env),
            default_env=defaults,
            places=self._places,
            host=self._host,
        )

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of `ranks` that still run."""
        for rank in sorted(self._world.alive.intersection(ranks)):
            # If its fork server has ended, `events` tells it.
            with contextlib.suppress(LaunchError):
                self._servers[rank].signal([rank], number)

    def events(self) -> Iterator[LauncherEvent]:
        """Yield what has happened since the last call; a LaunchError if the fork server of rank 0 has ended."""
        for key, _ in self._selector.select(0):
            # Else what came before it in this round has removed it.
            if key.fd in self._selector.get_map():
                yield from self._hear(key.data, key.fd)

    def _hear(self, rank: int, fd: int) -> Iterator[LauncherEvent]:
        why = f"the process that {self._rank_info.launcher} started for it has ended"
        if fd == self._servers[rank].fileno():
            try:
                yield from self._merged(rank)
            except LaunchError as error:
                if rank == 0:
                    raise
                why = str(error).partition("\n")[0]
            else:
                return
        # If a bridge leads to it, the bridge tells why.
        yield from self._lose(rank, self._door.lost.get(rank, why) if self._door else why)

    def _merged(self, rank: int) -> Iterator[LauncherEvent]:
        """Yield the events of a fork server, with those about a whole world once for all servers."""
        world = self._world
        for event in self._servers[rank].events():
            if event.world != world.number:
                continue
            match event:
                case WorldStarted():
                    # Pids of other nodes mean nothing here.
                    if event.pids and (rank == 0 or not self._peers[rank].node):
                        world.pids[rank] = event.pids[0]
                    yield WorldStarted(world.number, tuple(world.pids))
                case WorldOver():
                    yield from self._over(rank, event.leaked)
                case RankEnded():
                    world.alive.discard(rank)
                    yield dataclasses.replace(event, rank=rank)
                case _:
                    yield event

    def _over(self, rank: int, leaked: Sequence[str] = ()) -> Iterator[LauncherEvent]:
        world = self._world
        if rank in world.not_over:
            world.not_over.remove(rank)
            world.leaked += leaked
            if not world.not_over:
                yield WorldOver(world.number, tuple(world.leaked))

    def _lose(self, rank: int, reason: str) -> Iterator[LauncherEvent]:
        self.gone[rank] = reason
        peer = self._peers[rank]
        for one in (peer.connection, peer.control):
            self._selector.unregister(one)
        # If the fork server lives, it removes all that the rank has started.
        with contextlib.suppress(OSError):
            peer.control.shutdown(socket.SHUT_RDWR)
        if rank in self._world.alive:
            self._world.alive.remove(rank)
            yield RankEnded(self._world.number, rank, UNKNOWN_EXIT_CODE, reason)
        yield from self._over(rank)

    def close(self) -> None:
        """End the other launched processes with `exit_code`, and all fork servers."""
        self._selector.close()
        for peer in self._peers.values():
            # The launcher may have ended it already.
            with contextlib.suppress(OSError):
                wire.send(peer.connection, MESSAGES, EndRun(self.exit_code))
            peer.connection.close()
            peer.control.close()
        self._peers.clear()
        if self._door is not None:
            self._door.close()
        self._own.close()

    def exit_message(self) -> str:
        """Return the text about launched processes that have ended."""
        name = self._rank_info.launcher
        reasons = "".join(f" {reason}." for reason in dict.fromkeys(self.gone.values()))
        return (
            f"The process(es) of rank(s) {', '.join(map(str, self.gone))} of {name}'s world are lost:{reasons}\n"
            "A world without one of its ranks cannot run a case.\n"
            f"{name}'s output below says how they ended; the first case that failed says what they were doing."
        )


def _part(request: WorldRequest, rank: int, fds: Sequence[int]) -> tuple[WorldRequest, list[int]]:
    """Return the request, and the descriptors, for a fork server that makes only one rank of the world."""
    shared = fds[2 * request.size :]
    part = dataclasses.replace(request, own_ranks=(rank,))
    if request.brings_store and not part.brings_store:
        shared = [shared[0], *shared[2:]]
    return part, [fds[rank], fds[request.size + rank], *shared]
