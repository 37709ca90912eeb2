"""The launcher that forks a fork server from the runner and asks it for worlds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from dist_testing.core.events.event import Event, event_of
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.launch import fork_server
from dist_testing.core.launch.clean import spare_cuda, unclean_reasons
from dist_testing.core.launch.fresh import as_here, command
from dist_testing.core.launch.launcher import RunContext
from dist_testing.core.process import wire
from dist_testing.core.process.launcher_messages import (
    FORK_SERVER_EVENTS,
    FORK_SERVER_ORDERS,
    ForkServerOrder,
    FreshForkServer,
    LauncherEvent,
    RunEvent,
    SignalRanks,
    Unfit,
    WorldExtra,
    WorldRequest,
)
from dist_testing.core.process.lifetime import (
    become_subreaper,
    check_platform,
    end_child,
    fork,
    in_new_thread,
    watch_child,
)
from dist_testing.core.process.orphans import Orphans
from dist_testing.core.process.refusal import refusal

# Seconds for the fork server to remove its descendants; it has limits of its own.
_CLOSE_LIMIT_S = 15.0


class ForkServerClient:
    """The runner's end of the connection to a fork server."""

    def __init__(self, control: socket.socket, exit_message: str, emit: Callable[[Event], None]) -> None:
        """Use a connection. `exit_message` is the text of the error when the fork server has ended."""
        # Since the last world. The next one emits them.
        self.pending_events: list[Event] = []
        self._control = control
        self._exit_message = exit_message
        self._emit = emit
        self._reader = wire.MessageReader(FORK_SERVER_EVENTS)

    def fileno(self) -> int:
        """Return a descriptor that is readable when the fork server has sent something or has ended."""
        return self._control.fileno()

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Ask for a world. The fork server then has its own copies of the descriptors; close yours.

        Raises:
            LaunchError: If the fork server is gone or did not get the whole request. It then serves no other world.
        """
        while self.pending_events:
            self._emit(dataclasses.replace(self.pending_events.pop(0), at_s=time.monotonic()))
        self._send(request, fds)

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of `ranks` that still run."""
        self._send(SignalRanks(tuple(ranks), number))

    def order(self, world: int, add_on: str, payload: str) -> None:
        """Give the place of a world an order of its add-on. The event `WorldExtra` can answer."""
        self._send(WorldExtra(world, add_on, payload))

    def events(self) -> Iterator[LauncherEvent]:
        """Yield the events since the last call. Blocks if there are none.

        Raises:
            LaunchError: If the fork server has ended, cannot serve, or has sent unreadable bytes.
        """
        try:
            data = self._control.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise LaunchError(self._exit_message)
        try:
            for event in self._reader.feed(data):
                if isinstance(event, Unfit):
                    raise LaunchError(event.text)
                if isinstance(event, RunEvent):
                    # An event of the run at once would stand before events that the supervisor saw earlier.
                    if (told := event_of(json.loads(event.event))) is not None:
                        self.pending_events.append(told)
                else:
                    yield event
        except MessageError as error:
            raise LaunchError(str(error)) from error

    def _send(self, order: ForkServerOrder, fds: Sequence[int] = ()) -> None:
        try:
            wire.send(self._control, FORK_SERVER_ORDERS, order, fds)
        except MessageError as error:
            raise LaunchError(str(error)) from error
        except (BrokenPipeError, ConnectionResetError) as error:
            # If its last event gives the reason, `events` raises it.
            for _ in self.events():
                continue
            raise LaunchError(self._exit_message) from error
        except OSError as error:
            # The fork server may have got a part of the order, and would not understand the next one.
            raise LaunchError(f"The fork server can receive no more orders: {refusal(error)}") from error


class ForkServerLauncher(ForkServerClient):
    """Forks the fork server from this process, and asks it for one world at a time.

    Make this object before any test code runs.

    Attributes:
        unclean_reasons: Why this process was unfit to be forked; empty if it was fit, or if the run forbids it.
    """

    def __init__(self, run: RunContext) -> None:
        """Fork the fork server. If this process is unfit for that, or must not be forked, start a fresh interpreter."""
        check_platform()
        self.unclean_reasons = unclean_reasons() if run.may_fork_runner and not run.keeps_state else []
        become_subreaper()
        spare_cuda()
        if not run.keeps_state:
            # Else this process is a user's own program, whose garbage must stay visible.
            _freeze_imports()
        ours, theirs = socket.socketpair()
        # Opened here, because the runner may have ended before the fork server could do it.
        runner = os.pidfd_open(os.getpid())
        with theirs, contextlib.ExitStack() as undo, contextlib.ExitStack() as after:
            undo.enter_context(ours)
            after.callback(os.close, runner)
            if self.unclean_reasons or not run.may_fork_runner:
                self._pid = _start_fresh(theirs, runner, run)
            else:

                def start() -> int:
                    if (pid := fork()) == 0:
                        # Garbage may rely on threads that the fork does not have: a collection can crash.
                        gc.freeze()
                        ours.close()
                        fork_server.serve(theirs, runner, run.ranks, run.loader, run.directories, run.forks)
                    return pid

                self._pid = in_new_thread(start) if run.keeps_state else start()
            # A test may wait for all children. Then the pid could belong to another process.
            self._pidfd = watch_child(self._pid)
            undo.pop_all()
        super().__init__(
            ours,
            f"The fork server (pid {self._pid}), the parent of all ranks, ended before the runner was done with it.\n"
            "It runs no test code. Most likely the kernel killed it for lack of memory, or a test killed it.\n"
            "Look for an out-of-memory message of the kernel, and for a test that kills its parent process.",
            run.emit,
        )

    def close(self) -> None:
        """Let the fork server end, and wait until it has removed all its descendants."""
        if self._pidfd < 0:
            return
        pidfd, self._pidfd = self._pidfd, -1
        has_cleaned_up = False
        # The socket stays open until the fork server has ended, and so proves that the runner is alive. The exit status
        # is lost if a test has waited for the fork server, or this process ignores SIGCHLD.
        with self._control, contextlib.suppress(ChildProcessError, ProcessLookupError):
            self._control.shutdown(socket.SHUT_WR)
            # It is killed if a test has stopped it. The ranks die with it.
            has_cleaned_up = end_child(pidfd, _CLOSE_LIMIT_S)
        if not has_cleaned_up:
            # If it was killed, Linux has made this process the parent of all processes that the ranks had started.
            Orphans(self._pid).remove()


@functools.cache
def _freeze_imports() -> None:
    """Hide all present objects from the garbage collector of this process, once.

    The import of torch leaves 170,000 objects that live until the end. A full collection looks at all of them and takes
    0.1 to 0.2 s, and pytest makes five at its end. It also writes to each of them, and so copies the pages that this
    process shares with the fork server. The collector still finds the garbage of objects that tests make.
    """
    gc.freeze()


def _start_fresh(control: socket.socket, runner: int, run: RunContext) -> int:
    loader = as_here(run.loader)
    if run.may_fork_runner:
        # As in the runner: a test file need not import it, and then each rank would, which takes seconds.
        loader = dataclasses.replace(loader, import_first=(*loader.import_first, "torch.distributed"))
    arguments, descriptor = command(
        fork_server.__name__,
        FreshForkServer(control.fileno(), runner, tuple(run.directories), loader, run.forks),
    )
    try:
        # It stays in this process group, because Bazel kills the group.
        process = subprocess.Popen(arguments, pass_fds=(control.fileno(), runner, descriptor), stdin=subprocess.DEVNULL)
    finally:
        os.close(descriptor)
    # Popen must not wait for it, because `close` does.
    process.returncode = 0
    return process.pid
