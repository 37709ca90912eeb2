"""The fork launcher: the runner's side of the fork server."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence

from dist_testing.errors import LaunchError, MessageError
from dist_testing.launch import fork_server
from dist_testing.launch.clean import spare_cuda, unclean_reasons
from dist_testing.launch.fresh import command, with_imports
from dist_testing.launch.launcher import RunContext
from dist_testing.process import wire
from dist_testing.process.lifetime import become_subreaper, check_platform, fork, watch_child
from dist_testing.process.messages import (
    FORK_SERVER_EVENTS,
    FORK_SERVER_ORDERS,
    ForkServerOrder,
    FreshForkServer,
    LauncherEvent,
    SignalRanks,
    Unfit,
    WorldRequest,
)
from dist_testing.process.orphans import kill_orphans
from dist_testing.process.refusal import refusal

__all__ = ["ForkServerLauncher"]

# How long the fork server may take to remove what is left below it; it has limits of its own. Seconds.
_CLOSE_LIMIT_S = 15.0


class ForkServerLauncher:
    """Forks the fork server from this process, and asks it for worlds.

    One world at a time. The constructor forks the fork server, so make this object before any test code runs.

    Attributes:
        unclean_reasons: Why the fork server is a fresh interpreter; empty when it was forked.
    """

    def __init__(self, run: RunContext) -> None:
        """Fork the fork server; or, if this process is not fit to be forked, start it as a fresh interpreter.

        Args:
            run: What the fork server needs of the run.

        Raises:
            LaunchError: If the platform is not Linux.
            OSError: If the machine has no room for it.
        """
        check_platform()
        self.unclean_reasons = unclean_reasons()
        self._temp = run.temp
        become_subreaper()
        spare_cuda()
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            if self.unclean_reasons:
                self._pid = _start_fresh(theirs, run)
            else:
                self._pid = fork()
                if self._pid == 0:
                    ours.close()
                    fork_server.serve(theirs, run.ranks, run.loader, run.directories)
            # A test may wait for any child; from then on the number could belong to another process.
            self._pidfd = watch_child(self._pid)
            undo.pop_all()
        self._control = ours
        self._reader = wire.MessageReader(FORK_SERVER_EVENTS)

    def fileno(self) -> int:
        """For polling: readable when the fork server has sent something, or has ended."""
        return self._control.fileno()

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Ask for a world. The fork server has its own copies of the descriptors from then on; close yours.

        Raises:
            LaunchError: If the fork server is gone, or did not get all of the request. It is of no use any more.
        """
        self._send(request, fds)

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of `ranks` that still run."""
        self._send(SignalRanks(tuple(ranks), number))

    def events(self) -> Iterator[LauncherEvent]:
        """Yield what the fork server has sent since the last call. Blocks only if nothing is there.

        Raises:
            LaunchError: If the fork server has ended, cannot serve, or has sent what cannot be read.
        """
        try:
            data = self._control.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise LaunchError(self._exit_message())
        try:
            for event in self._reader.feed(data):
                if isinstance(event, Unfit):
                    raise LaunchError(event.text)
                yield event
        except MessageError as error:
            raise LaunchError(str(error)) from error

    def close(self) -> None:
        """Let the fork server go, and wait until it has removed whatever is left below it."""
        if self._pidfd < 0:
            return
        pidfd, self._pidfd = self._pidfd, -1
        has_cleaned_up = False
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        try:
            # Closed when the fork server has ended: until then it can tell this runner from a killed one.
            self._control.shutdown(socket.SHUT_WR)
            if not poller.poll(1000 * _CLOSE_LIMIT_S):
                # A test has stopped it. Its ranks die with it.
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
            has_cleaned_up = ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)
        except (ChildProcessError, ProcessLookupError):
            # How it ended is not known: a test has waited for it, or this process ignores SIGCHLD.
            pass
        finally:
            os.close(pidfd)
            self._control.close()
        if not has_cleaned_up:
            # It was killed, perhaps. Then Linux gave the processes that the ranks had started to this process.
            kill_orphans(self._temp, self._pid)

    def _send(self, order: ForkServerOrder, fds: Sequence[int] = ()) -> None:
        try:
            wire.send(self._control, FORK_SERVER_ORDERS, order, fds)
        except MessageError as error:
            raise LaunchError(str(error)) from error
        except (BrokenPipeError, ConnectionResetError) as error:
            # Its last event may say why it ended; `events` then raises that.
            for _ in self.events():
                continue
            raise LaunchError(self._exit_message()) from error
        except OSError as error:
            # A part of it may have been sent, so the fork server would not understand what follows.
            raise LaunchError(
                f"The process that ranks are forked from (pid {self._pid}) can be told nothing more: {refusal(error)}"
            ) from error

    def _exit_message(self) -> str:
        return (
            f"The process that ranks are forked from (pid {self._pid}) has ended before the runner was done with it.\n"
            "It runs no test code, so it was most likely killed: by the kernel for lack of memory, or by a test.\n"
            "Look for an out-of-memory message of the kernel, and for a test that kills its parent process."
        )


def _start_fresh(control: socket.socket, run: RunContext) -> int:
    arguments, descriptor = command(
        fork_server.__name__,
        FreshForkServer(control.fileno(), tuple(run.directories), os.getpid(), with_imports(run.loader)),
    )
    try:
        # In this process group, as all processes of a test must be: Bazel kills the group.
        process = subprocess.Popen(arguments, pass_fds=(control.fileno(), descriptor), stdin=subprocess.DEVNULL)
    finally:
        os.close(descriptor)
    # `close` waits for it by its number, as for a forked one.
    process.returncode = 0
    return process.pid
