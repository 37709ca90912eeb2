"""The keeper of one service: a small process between the runner and the service.

It adopts every process that the service leaves, in any session, and marks them all, as the fork server does with ranks.
So nothing of the service can outlive it. It stops the service when the runner asks for that, or has ended, also by
SIGKILL. It loads neither torch nor the tests.

    runner  --- Keep, in the keeper's arguments ------>  keeper  --- fork, exec --->  service
            <-- Started or Refused, Ended, Over -------

The runner closes its side of the connection for writing to stop the service.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias

import psutil

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.procfs import command_of
from dist_testing.core.process import wire
from dist_testing.core.process.lifetime import become_subreaper, die_with_parent
from dist_testing.core.process.orphans import Orphans, is_dead, mark_descendants
from dist_testing.core.process.refusal import refusal

_HOST = "127.0.0.1"
_BACKLOG = 128

# Who opens the port: the service, at the number "{port}"; the keeper, for the descriptor "{fd}"; the service alone.
Opens: TypeAlias = Literal["port", "fd", ""]


@dataclass(frozen=True, slots=True)
class Keep:
    """Start a service, and keep it until the runner stops it or ends."""

    command: tuple[str, ...]  # with the placeholders of the port
    opens: Opens
    port: int  # 0 for a free one
    grace_s: float  # from SIGTERM to SIGKILL
    runner_pid: int
    folder: str  # of the log, which this process removes if the runner has ended before
    control_fd: int  # the connection to the runner
    fds: tuple[int, ...]  # that the service inherits


@dataclass(frozen=True, slots=True)
class Started:
    """The service has started."""

    pid: int
    port: int  # 0 if the service opens one by itself


@dataclass(frozen=True, slots=True)
class Refused:
    """The service cannot be started. `text` has the subject, the cause and the way out."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The main process of the service has ended before the runner has stopped it."""

    exit_code: int  # a negative number is a signal
    at_s: float  # on the monotonic clock


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing of the service runs any more. This is the last message."""

    killed: tuple[str, ...]  # command lines of its processes that did not end after SIGTERM
    leaked: tuple[str, ...]  # those of processes that had left its process group, and outlived it
    port_taken: bool  # whether another process still listens at its port


KeeperEvent: TypeAlias = Started | Refused | Ended | Over
KEEPER_ORDERS: Family[Keep] = Family("order to the keeper of a service", 1, (Keep,))
KEEPER_EVENTS: Family[KeeperEvent] = Family("message of the keeper of a service", 1, (Started, Refused, Ended, Over))


def main(text: str) -> NoReturn:
    """Be the keeper, in the interpreter that the runner starts."""
    order = KEEPER_ORDERS.from_wire(text)
    try:
        _Keeper(order).run()
    finally:
        # A runner that lives still needs the log, and removes it.
        if os.getppid() != order.runner_pid:
            shutil.rmtree(order.folder, ignore_errors=True)
    os._exit(0)


class _Keeper:
    def __init__(self, order: Keep) -> None:
        self._order = order
        self._control = socket.socket(fileno=order.control_fd)
        self._runner = os.pidfd_open(order.runner_pid)
        if os.getppid() != order.runner_pid:
            sys.exit(1)

    def run(self) -> None:
        become_subreaper()
        mark_descendants()
        with contextlib.ExitStack() as stack:
            try:
                port, opened = self._open_port(stack)
                service = self._start(port, opened)
            except OSError as error:
                self._tell(Refused(self._refusal(error)))
                return
            if opened is not None and self._order.opens == "fd":
                # The service alone has it: a connection to a service that has ended must be refused.
                opened.close()
            self._tell(Started(service.pid, port))
            self._wait(service)
            killed, leaked = self._end_processes(service.pid)
            # Before its own socket is closed, so that no other service has got the port meanwhile.
            port_taken = bool(port) and not is_free(port)
        self._tell(Over(tuple(killed), tuple(leaked), port_taken))

    def _tell(self, event: KeeperEvent) -> None:
        # The runner may have been killed.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.send(self._control, KEEPER_EVENTS, event)

    def _open_port(self, stack: contextlib.ExitStack) -> tuple[int, socket.socket | None]:
        """Open the port, if this is not left to the service, and return its number and socket."""
        if not self._order.opens:
            return 0, None
        opened = stack.enter_context(socket.socket())
        # A socket that is bound so, and does not listen, keeps the port from all but those who name it, and leaves it
        # to a server that sets the same option, as nearly all do.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((_HOST, self._order.port))
        if self._order.opens == "fd":
            opened.listen(_BACKLOG)
        port: int = opened.getsockname()[1]
        return port, opened

    def _start(self, port: int, opened: socket.socket | None) -> subprocess.Popen[bytes]:
        fds = list(self._order.fds)
        fd = ""
        if opened is not None and self._order.opens == "fd":
            fds.append(opened.fileno())
            fd = str(opened.fileno())
        keeper = os.getpid()
        return subprocess.Popen(
            [part.replace("{port}", str(port)).replace("{fd}", fd) for part in self._order.command],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,
            # Nothing else ends it if this process is killed.
            preexec_fn=lambda: die_with_parent(keeper),
        )

    def _refusal(self, error: OSError) -> str:
        if error.errno == errno.EADDRINUSE:
            return (
                f"port {self._order.port} is in use.\n"
                f"{_listener_at(self._order.port)}.\n"
                "End it, choose another port, or leave fixed_port out: the service then gets a free one."
            )
        if isinstance(error, FileNotFoundError | PermissionError) and error.filename:
            return (
                f"{error.filename!r} cannot be started: {error.strerror}.\n"
                "The first part of the command is a program on PATH, or the path of an executable file.\n"
                "Correct it, or install the program; {python} stands for the interpreter of the tests."
            )
        return f"it cannot be started: {refusal(error)}"

    def _wait(self, service: subprocess.Popen[bytes]) -> None:
        """Wait until the service ends, and tell it; or until the runner stops it, or has ended."""
        ended = os.pidfd_open(service.pid)
        poller = select.poll()
        for fd in (ended, self._control.fileno(), self._runner):
            poller.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poller.poll()]
        if ended in ready:
            at_s = time.monotonic()
            # It stays a zombie, so that no other process gets its number before its group has been ended.
            found = os.waitid(os.P_PID, service.pid, os.WEXITED | os.WNOWAIT)
            assert found is not None
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            self._tell(Ended(code, at_s))
        os.close(ended)

    def _end_processes(self, group: int) -> tuple[list[str], list[str]]:
        """End the process group of the service, then all that it has left.

        Returns the command lines of the members that ended only by SIGKILL, and those of other processes that outlived
        the group.
        """
        until_s = time.monotonic() + self._order.grace_s
        os.killpg(group, signal.SIGTERM)
        killed: list[str] = []
        while members := _members(group):
            if (left_s := until_s - time.monotonic()) > 0:
                # A member may start another one before it ends.
                psutil.wait_procs(members, timeout=left_s)
                continue
            killed += [f"{command_of(member.pid)} (pid {member.pid})" for member in members]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            psutil.wait_procs(members)
        left = Orphans().remove()
        # Its main process has had no chance to end them.
        return (killed + left, []) if killed else ([], left)


def _members(group: int) -> list[psutil.Process]:
    """Return the living processes of a group below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and not is_dead(process):
                found.append(process)
    return found


def is_free(port: int) -> bool:
    """Return whether no process listens at a port of the loopback interface."""
    with socket.socket() as probe:
        # Else connections of the past would count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _listener_at(port: int) -> str:
    """Return a sentence, without a full stop, on the process that listens at a port."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
            return f"Process {connection.pid} listens there: {command_of(connection.pid)}"
    return "A process of another user, or of another container, listens there"
