"""A warm process: it has imported modules, waits, and forks a process for each order.

    watcher ----> torch and third-party code ----> library modules ----> conftest files ----> run

Each arrow is a fork. A warm process runs no test, and has one thread. So a run begins where its parent stands, and
never sees an earlier run. The watcher talks to each of them over a socket of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from dist_testing.core.ground.error_text import summarise
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.process import wire
from dist_testing.core.process.lifetime import become_subreaper, die_with_parent, fork, watch_child
from dist_testing.core.process.orphans import Orphans
from dist_testing.core.process.refusal import refusal
from dist_testing.watch.files import file_of, own_files
from dist_testing.watch.inert import Inertness
from dist_testing.watch.messages import (
    WATCH_EVENTS,
    WATCH_ORDERS,
    ChildEnded,
    Parked,
    Preload,
    RunTests,
    StopRun,
    WatchEvent,
    WatchOrder,
)

# Seconds until a run that was told to stop is killed. The fork server then removes the ranks.
_STOP_LIMIT_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class Fork:
    """What a forked process is for.

    Attributes:
        order: The order that it was forked for.
        channel: Its connection to the watcher.
        inertness: What it had when it was forked.
    """

    order: WatchOrder
    channel: socket.socket
    inertness: Inertness | None


def grow(order: Preload) -> list[str]:
    """Import the modules of an order. Return what went wrong, in one line each."""
    path, wanted = list(sys.path), dict(zip(order.modules, order.files, strict=True))
    sys.path[:] = order.search_path or path
    # A pool of threads would not survive the fork. The test modules' own imports are not limited.
    is_limited = _BLAS_THREADS not in os.environ
    if is_limited:
        os.environ[_BLAS_THREADS] = "1"
    problems = []
    try:
        for name, file in wanted.items():
            try:
                found = file_of(importlib.import_module(name))
            except (Exception, SystemExit) as error:
                # The tests import it, too, and report the error in its place.
                problems.append(f"{name} cannot be imported: {summarise(error)}")
                continue
            if file and found != file:
                problems.append(f"{name} is {found} here, but {file} for the tests")
    finally:
        sys.path[:] = path
        if is_limited and os.environ.get(_BLAS_THREADS) == "1":
            del os.environ[_BLAS_THREADS]
    return problems


def park(channel: socket.socket, obstacles: Sequence[str]) -> Fork:
    """Wait for orders. Returns only in the processes that are forked for them.

    With obstacles this process is of no use: it says so, and ends as Python does.
    """
    wire.send(channel, WATCH_EVENTS, Parked(tuple(own_files()), tuple(obstacles)))
    if obstacles:
        raise SystemExit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    # The garbage collector of a run does not touch frozen objects, so their pages stay shared.
    gc.freeze()
    return _Warm(channel).serve()


class _Warm:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._orphans = Orphans()
        # pidfd -> pid and whether it is a run
        self._children: dict[int, tuple[int, bool]] = {}
        self._kill_at_s = 0.0
        # Ctrl-C reaches all processes of the terminal. The watcher decides about it.
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        become_subreaper()
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)

    def serve(self) -> Fork:
        """Obey orders. Returns in forked processes; this one ends when the watcher is gone."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, MessageError):
            while True:
                for fd, _ in self._poller.poll(self._wait_ms()):
                    if fd != self._channel.fileno():
                        self._reap(fd)
                    elif (received := wire.receive(self._channel, WATCH_ORDERS)) is None:
                        self._end()
                    elif (forked := self._obey(*received)) is not None:
                        return forked
                self._kill_late()
        return self._end()

    def _obey(self, order: WatchOrder, fds: Sequence[int]) -> Fork | None:
        if isinstance(order, StopRun):
            self._stop_run()
            return None
        is_run = isinstance(order, RunTests)
        parent = os.getpid()
        try:
            pid = fork()
            pidfd = watch_child(pid) if pid else -1
        except OSError as error:
            print(f"watch: this machine has no room for another process: {refusal(error)}", flush=True)
            for fd in fds:
                os.close(fd)
            self._send(ChildEnded(1, is_run))
            return None
        if pid == 0:
            die_with_parent(parent, signal.SIGTERM if is_run else signal.SIGKILL)
            self._channel.close()
            for pidfd in self._children:
                os.close(pidfd)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            importlib.invalidate_caches()
            inertness = None if is_run else Inertness(may_hold=isinstance(order, Preload) and order.may_hold)
            return Fork(order, socket.socket(fileno=fds[0]), inertness)
        for fd in fds:
            os.close(fd)
        self._children[pidfd] = (pid, is_run)
        self._poller.register(pidfd, select.POLLIN)
        return None

    def _reap(self, pidfd: int) -> None:
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid, is_run = self._children.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        if is_run:
            self._kill_at_s = 0.0
        if not self._children:
            self._orphans.remove()
        self._send(ChildEnded(os.waitstatus_to_exitcode(status), is_run))

    def _stop_run(self) -> None:
        for pid, is_run in self._children.values():
            if is_run and not self._kill_at_s:
                os.kill(pid, signal.SIGTERM)
                self._kill_at_s = time.monotonic() + _STOP_LIMIT_S

    def _kill_late(self) -> None:
        if self._kill_at_s and time.monotonic() >= self._kill_at_s:
            for pid, is_run in self._children.values():
                if is_run:
                    os.kill(pid, signal.SIGKILL)

    def _wait_ms(self) -> float | None:
        return 1000 * max(0.01, self._kill_at_s - time.monotonic()) if self._kill_at_s else None

    def _send(self, event: WatchEvent) -> None:
        wire.send(self._channel, WATCH_EVENTS, event)

    def _end(self) -> NoReturn:
        """End the run; other children see the end of their own connections. The exit handlers belong to the runs."""
        self._poller.unregister(self._channel)
        self._stop_run()
        deadline_s = time.monotonic() + 2 * _STOP_LIMIT_S
        while self._children and time.monotonic() < deadline_s:
            for fd, _ in self._poller.poll(1000):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self._reap(fd)
            self._kill_late()
        self._orphans.remove()
        os._exit(0)
