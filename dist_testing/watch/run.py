"""A run: a fork of the watcher that runs tests, and the watcher's connection to it."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field

from dist_testing.core.ground.errors import MessageError
from dist_testing.core.process import wire
from dist_testing.core.process.lifetime import die_with_parent, fork, watch_child
from dist_testing.core.process.orphans import Orphans
from dist_testing.watch.messages import WATCH_EVENTS, WatchEvent

# Seconds until a run that was told to stop is killed. Its fork server then removes the ranks.
_STOP_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Order:
    """Which tests a run runs."""

    # Files, folders and node ids that replace those of the command line; empty for the command line's.
    arguments: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()  # Test files that are not collected
    failed: tuple[str, ...] = ()  # Node ids of the tests that failed last. They come first.
    only_failed: bool = False  # whether the run leaves out all other tests
    pattern: str = ""  # Expression for `-k`; "" for none
    debug_rank: int | None = None  # the rank that gets the terminal; None for none


@dataclass(frozen=True, slots=True)
class Fork:
    """The run, in its own process: its order, and its connection to the watcher."""

    order: Order
    channel: socket.socket


@dataclass(slots=True)
class Run:
    """The run, in the watcher."""

    pid: int
    pidfd: int  # of its process
    channel: socket.socket  # the connection to it
    events: list[WatchEvent] = field(default_factory=list)  # what it has told
    # Its exit code, or the negative number of a signal; None while it or a process that it has left lives.
    code: int | None = None
    _reader: wire.MessageReader[WatchEvent] = field(default_factory=lambda: wire.MessageReader(WATCH_EVENTS))
    _kill_at_s: float = 0.0

    def receive(self) -> bool:
        """Take what has come; call it when the channel is readable. Return whether more may come."""
        try:
            data = self.channel.recv(1 << 16)
            self.events += self._reader.feed(data)
        except (ConnectionResetError, MessageError):
            data = b""
        if not data:
            self.channel.close()
        return bool(data)

    def stop(self) -> None:
        """Tell it to end."""
        if self.code is None and not self._kill_at_s:
            os.kill(self.pid, signal.SIGTERM)
            self._kill_at_s = time.monotonic() + _STOP_LIMIT_S

    def kill_late(self) -> None:
        """Kill it if it was told to end, and has not in time. Call it again and again."""
        if self.code is None and self._kill_at_s and time.monotonic() >= self._kill_at_s:
            os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Take its exit code, and kill what it has left; call it when the process has ended."""
        os.close(self.pidfd)
        _, status = os.waitpid(self.pid, 0)
        if self.channel.fileno() >= 0:
            # A process that the run has left may hold the other end.
            self.channel.setblocking(False)
            try:
                while self.receive():
                    pass
            except BlockingIOError:
                self.channel.close()
        Orphans().remove()
        self.code = os.waitstatus_to_exitcode(status)


def fork_run(order: Order) -> Run | Fork:
    """Fork a run. Returns a `Fork` in the new process, with SIGTERM blocked, and a `Run` in this one."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # The signal that stops the run must wait until the run can handle it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        pid = fork()
        if pid == 0:
            die_with_parent(parent, signal.SIGTERM)
            ours.close()
            importlib.invalidate_caches()
            return Fork(order, theirs)
        theirs.close()
        pidfd = watch_child(pid)
    except OSError:
        ours.close()
        theirs.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        raise
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    return Run(pid, pidfd, ours)
