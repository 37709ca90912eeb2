"""The watcher's side of the warm processes: which of them are alive, and what each has imported."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.process import wire
from dist_testing.core.process.lifetime import end_child, watch_child
from dist_testing.core.process.orphans import Orphans
from dist_testing.watch.messages import (
    WATCH_EVENTS,
    WATCH_ORDERS,
    ChildEnded,
    LoadConftests,
    Parked,
    Preload,
    RunTests,
    StopRun,
    WatchEvent,
    WatchOrder,
)

# Seconds for all warm processes to end. Each removes what its run has left.
_CLOSE_LIMIT_S = 30.0


@dataclass(slots=True)
class Peer:
    """A warm process or a run, as the watcher sees it.

    Attributes:
        order: What it was forked for.
        channel: The connection to it.
        files: Own files that it has imported.
        parked: Its message that it waits; None before.
        is_gone: Whether it has closed the connection.
        events: Other events of it that have come and were not taken yet.
    """

    order: WatchOrder
    channel: socket.socket
    files: frozenset[str] = frozenset()
    parked: Parked | None = None
    is_gone: bool = False
    events: list[WatchEvent] = field(default_factory=list)
    reader: wire.MessageReader[WatchEvent] = field(default_factory=lambda: wire.MessageReader(WATCH_EVENTS))

    def receive(self) -> None:
        """Take what has come; call it when the channel is readable."""
        try:
            data = self.channel.recv(1 << 16)
            for event in self.reader.feed(data):
                if isinstance(event, Parked):
                    self.parked, self.files = event, frozenset(event.files)
                else:
                    self.events.append(event)
        except (ConnectionResetError, MessageError):
            data = b""
        self.is_gone |= not data


class Chain:
    """The warm processes, each forked from the one before it.

    Args of the functions that wait: `wait` takes a condition, serves all connections until it holds, and raises what
    ends the watch.
    """

    def __init__(self, pid: int, channel: socket.socket, torch: Preload) -> None:
        """Take over the first process, which was forked for the order `torch`."""
        self._pid = pid
        self._pidfd = watch_child(pid)
        self._peers = [Peer(torch, channel)]
        self.run: Peer | None = None

    @property
    def peers(self) -> Sequence[Peer]:
        """All processes with a connection, the first one first, the run last."""
        return [*self._peers, *([self.run] if self.run is not None else [])]

    @property
    def last(self) -> Peer:
        """The process that has imported most."""
        return self._peers[-1]

    def drop(self, changed: Collection[str]) -> None:
        """End the processes that have imported a changed file, and those that were forked from them."""
        for index, peer in enumerate(self._peers):
            if index and (peer.is_gone or not peer.files.isdisjoint(changed)):
                self._cut(index)
                return

    def fit(self, orders: Sequence[WatchOrder]) -> None:
        """End the processes that are not, in this order, forked for these orders."""
        for index, peer in enumerate(self._peers[1:]):
            if peer.is_gone or index >= len(orders) or peer.order != orders[index]:
                self._cut(index + 1)
                return

    def grow(self, order: Preload | LoadConftests, wait: Callable[[Callable[[], bool]], None]) -> Peer:
        """Have the last process fork one for an order, and wait until it has imported its modules.

        Returns:
            The new process. It is a part of the chain unless it is gone or has obstacles.
        """
        peer = self._fork(order)
        self._peers.append(peer)
        wait(lambda: peer.parked is not None or peer.is_gone)
        if peer.parked is None or peer.parked.obstacles:
            wait(lambda: peer.is_gone)
            peer.channel.close()
            self._peers.remove(peer)
        return peer

    def start_run(self, order: RunTests) -> Peer:
        """Have the last process fork a run."""
        self.run = self._fork(order)
        return self.run

    def run_ended(self) -> ChildEnded | None:
        """Return the end of the run, once; None if it still runs. Then nothing of it is left."""
        for event in self.last.events:
            if isinstance(event, ChildEnded) and event.is_run:
                break
        else:
            if not self.last.is_gone:
                return None
            event = ChildEnded(-signal.SIGKILL, is_run=True)
        self.last.events.clear()
        if self.run is not None:
            while not self.run.is_gone and select.select([self.run.channel], [], [], 0)[0]:
                self.run.receive()
            self.run.channel.close()
            self.run = None
        return event

    def stop_run(self) -> None:
        """Have the run stopped; `run_ended` tells its end."""
        self._send(StopRun())

    def close(self) -> None:
        """End all processes, and wait until nothing of them is left."""
        self._cut(1)
        self._peers[0].channel.close()
        if self.run is not None:
            self.run.channel.close()
            self.run = None
        end_child(self._pid, self._pidfd, _CLOSE_LIMIT_S)
        # This process has adopted what is left if a warm process was killed.
        Orphans().remove()

    def _cut(self, index: int) -> None:
        for peer in reversed(self._peers[index:]):
            # It ends when the connection does.
            peer.channel.close()
        del self._peers[index:]

    def _fork(self, order: WatchOrder) -> Peer:
        ours, theirs = socket.socketpair()
        with theirs:
            self._send(order, [theirs.fileno()])
        return Peer(order, ours)

    def _send(self, order: WatchOrder, fds: Sequence[int] = ()) -> None:
        try:
            wire.send(self.last.channel, WATCH_ORDERS, order, fds)
        except OSError as error:
            self.last.is_gone = True
            raise LaunchError(
                "A warm process of the watch mode has ended, and cannot start a run.\n"
                "It runs no test code. Most likely the kernel killed it for lack of memory, or a test killed it.\n"
                "Look for an out-of-memory message of the kernel, and for a test that kills its parent process."
            ) from error
