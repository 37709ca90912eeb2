"""A sub-runner as the runner sees it: its process, and the connection to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

from dist_testing.core.ground.errors import MessageError
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.process import wire
from dist_testing.core.process.descent import mark_of
from dist_testing.core.process.orphans import is_dead
from dist_testing.jobs.messages import MESSAGES, Message

# Seconds for the fork server of a dead sub-runner to kill its ranks and to end; and between two looks.
_ORPHANED_LIMIT_S = 15.0
_LOOK_S = 0.05


@dataclass(slots=True)
class Peer:
    """A sub-runner.

    Attributes:
        number: Its number, from 0.
        pid: Its process.
        pidfd: Becomes readable when it ends; -1 afterwards.
        channel: The runner's end of the connection; does not block.
        stacks_fd: The pipe for its stacks.
        ended: How it ended, such as "exit code 1" or a signal's name; "" while it runs.
        is_reported: Whether it has said that it had nothing more to do, or a report says that it has died.
        last_item: The item that it has last sent something about; None if it has not.
        trouble: Why the runner has killed it; "" if it has not.
    """

    number: int
    pid: int
    pidfd: int
    channel: socket.socket
    stacks_fd: int
    ended: str = ""
    is_reported: bool = False
    last_item: int | None = None
    trouble: str = ""
    _reader: wire.MessageReader[Message] = field(default_factory=lambda: wire.MessageReader(MESSAGES))

    @property
    def is_alive(self) -> bool:
        """Whether its end has not been seen."""
        return self.pidfd >= 0

    def messages(self) -> Iterator[Message]:
        """Yield what has come. Does not wait."""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while data := self.channel.recv(1 << 18):
                try:
                    yield from self._reader.feed(data)
                except MessageError as error:
                    self.trouble = str(error)
                    self.signal(signal.SIGKILL)
                    return

    def close(self) -> None:
        """Close the runner's descriptors, also those in a fork of the runner."""
        self.channel.close()
        os.close(self.stacks_fd)
        if self.is_alive:
            os.close(self.pidfd)

    def signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> None:
        """Note how the process ended; call it when the pidfd is readable."""
        pidfd, self.pidfd = self.pidfd, -1
        self.ended = "an unknown status"
        # A test may have waited for all children of the runner.
        with contextlib.suppress(ChildProcessError):
            status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
            if status is not None:
                is_exit = status.si_code == os.CLD_EXITED
                self.ended = exit_name(status.si_status if is_exit else -status.si_status)
        os.close(pidfd)


def wait_for_orphaned() -> None:
    """Wait until the fork servers of dead sub-runners have killed their ranks; kill what a dead fork server has left.

    A fork server whose runner is gone cleans up by itself. The kernel has made it a child of this process.
    """
    until_s = time.monotonic() + _ORPHANED_LIMIT_S
    # If this process runs on a rank of another run, all its children have that run's mark.
    inherited = mark_of(os.getpid())
    while time.monotonic() < until_s:
        is_waiting = False
        for child in psutil.Process().children():
            if (mark := mark_of(child.pid)) in (None, inherited):
                continue
            if is_dead(child):
                # Other code of the runner may have waited for it.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
                continue
            is_waiting = True
            if mark is not None and mark != child.pid and not psutil.pid_exists(mark):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    child.kill()
        if not is_waiting:
            return
        time.sleep(_LOOK_S)
