"""A service that runs, from its start to its end."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dist_testing.core.engine.rank_logs import read_tail
from dist_testing.core.engine.report_text import cut_lines, printable
from dist_testing.core.ground.error_text import name_of, summarise
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.ground.procfs import stat_of
from dist_testing.core.launch.fresh import interpreter
from dist_testing.core.process import wire
from dist_testing.core.process.lifetime import become_subreaper
from dist_testing.core.process.orphans import Orphans
from dist_testing.services.definition import TCP, Address, Definition, ServiceError
from dist_testing.services.keeper import (
    KEEPER_EVENTS,
    KEEPER_ORDERS,
    Ended,
    Keep,
    KeeperEvent,
    Over,
    Refused,
    Started,
    is_free,
)

if TYPE_CHECKING:
    from dist_testing.gpus.world_gpus import WorldGpus

# Between two looks at a service that is not healthy yet. Seconds.
_PAUSE_S = 0.05
# Beside the grace: the keeper kills, waits for helpers of multiprocessing, and looks at the port. Seconds.
_KEEPER_S = 15.0
# The field of `stat_of` that has the kernel's flags of a process, and the one that says that it is about to end
# (proc(5); PF_EXITING in include/linux/sched.h). It is set before the process closes its sockets.
_FLAGS = 6
_EXITING = 0x4
# Limit of one look at the health of a service. Seconds.
_LOOK_S = 2.0
_FIRST_GOOD, _FIRST_BAD = 200, 400
_TAIL_LINES = 40
_LOG = "log.txt"


class Running(Address):
    """A running service. `Service`, as a context manager or by a fixture, returns it.

    Attributes:
        definition: The service.
        ended: How it has ended by itself, as far as `poll` has seen; None if it runs.
        log_file: The file that takes its output.
    """

    def __init__(self, definition: Definition, log_line: Callable[[str], None]) -> None:
        """Start the service, without waiting until it is healthy. A ServiceError leaves nothing of it."""
        super().__init__()
        self.definition = definition
        self.ended: Ended | None = None
        self._over: Over | None = None
        self._owner = os.getpid()
        # Kept when the log is removed.
        self._output = ""
        self._is_awaited = False
        self._folder = Path(tempfile.mkdtemp(prefix="dist-service-"))
        self.log_file = self._folder / _LOG
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self._folder)
            # Held by the keeper, too: they are free when nothing of the service is left.
            self._gpus = _lease(definition, log_line)
            if self._gpus is not None:
                undo.callback(self._gpus.release, are_ranks_gone=True)
            self._control, theirs = socket.socketpair()
            undo.callback(self._control.close)
            with theirs:
                self._keeper = self._start_keeper(theirs.fileno())
            undo.callback(self._keeper.wait)
            # Not `close` alone: a process that was forked meanwhile could have it open.
            undo.callback(self._control.shutdown, socket.SHUT_WR)
            self._hear_start()
            undo.pop_all()

    def output(self) -> str:
        """Return what the service has printed, at most its last 512 KiB; also after its end."""
        return self._output or read_tail(self.log_file)

    def wait_healthy(self) -> None:
        """Wait until the service is healthy.

        Raises:
            ServiceError: If it ends before, or is not healthy within its limit; it is stopped then.
        """
        limit_s = self.definition.timeout
        until_s = time.monotonic() + limit_s
        try:
            while reason := self._unhealthy():
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise self._error(
                        f"it was not healthy within {limit_s:g} s: {reason}",
                        "It is slow, stuck, or its health check looks at the wrong place.",
                        "See its log, or give it more time (timeout).",
                    )
                self.poll(min(_PAUSE_S, left_s))
                if self.ended is not None:
                    raise self._error(
                        f"it ended with {exit_name(self.ended.exit_code)} before it was healthy",
                        "The command ends by itself, or fails at its start.",
                        "See its log, and run the command by hand.",
                    )
        except BaseException:
            self.stop()
            raise

    def poll(self, limit_s: float = 0.0) -> Ended | None:
        """Return how the service has ended by itself; None if it runs. Wait for that at most `limit_s` seconds."""
        # A process that was forked from the runner must not take its messages.
        if self.ended is None and self._over is None and os.getpid() == self._owner:
            self._hear(limit_s, Ended)
        return self.ended

    def settle(self) -> None:
        """Learn of an end that has begun, which a rank may have felt before the keeper could tell of it."""
        # The keeper keeps a service that has ended as a zombie, so no other process gets its number.
        fields = stat_of(self.pid) if self.ended is None else []
        self.poll(_KEEPER_S if fields and int(fields[_FLAGS]) & _EXITING else 0.0)

    def wait(self, timeout: float) -> int:
        """Wait until a service ends by itself that does its work and ends, and return its exit code.

        Raises:
            ServiceError: If it still runs after `timeout` seconds.
        """
        if (ended := self.poll(timeout)) is None:
            raise self._error(
                f"it was still running after {timeout:g} s",
                "The caller has waited for its end.",
                "See its log, or wait longer.",
            )
        self._is_awaited = True
        return ended.exit_code

    def headline(self) -> str:
        """Return one sentence on how the service has ended by itself, without a full stop; "" if it has not."""
        if self.ended is None or self._is_awaited:
            return ""
        return f"the service {self.definition.name} has ended with {exit_name(self.ended.exit_code)}"

    def tail(self) -> str:
        """Return the last lines of its output, with a line on what they are."""
        lines = cut_lines(printable(self.output()), _TAIL_LINES, ends_only=True)
        if not lines:
            return f"The service {self.definition.name} has printed nothing."
        return "\n".join([f"The end of the output of the service {self.definition.name}:", *lines])

    def stop(self) -> list[str]:
        """End all processes of the service, and return what it has left: a sentence each, without a full stop.

        A process that was forked from the runner stops nothing.
        """
        if self._over is not None or os.getpid() != self._owner:
            return []
        try:
            return self._stop()
        finally:
            # After Ctrl-C too: the keeper leaves the folder to a runner that lives.
            self._control.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _stop(self) -> list[str]:
        self._control.shutdown(socket.SHUT_WR)
        over = self._hear(self.definition.grace + _KEEPER_S, Over)
        if over is None:
            # It was killed, and with it the main process of the service. Linux has made this process the parent of all
            # others.
            self._keeper.kill()
            self._keeper.wait()
            over = Over((), tuple(Orphans(self._keeper.pid).remove()), port_taken=False)
        self._keeper.wait()
        self._over = over
        name = self.definition.name
        found: list[str] = []
        if over.killed:
            with self.log_file.open("a", encoding="utf-8") as log:
                print(
                    f"dist_testing: killed after SIGTERM and {self.definition.grace:g} s: {'; '.join(over.killed)}",
                    file=log,
                )
        if over.leaked:
            found.append(f"the service {name} has left processes behind, now killed: {'; '.join(over.leaked)}")
        if over.port_taken or (self.definition.announces and self.port and not is_free(self.port)):
            found.append(f"port {self.port} of the service {name} is still in use after its end")
        if self._gpus is not None:
            found += self._gpus.check(are_ranks_gone=True)
            found += [str(self._gpus.loss).partition("\n")[0].rstrip(".")] if self._gpus.loss is not None else []
            self._gpus.release(are_ranks_gone=True)
        self._output = self.output()
        return found

    def _start_keeper(self, control: int) -> subprocess.Popen[bytes]:
        definition = self.definition
        command, fds = definition.prepared()
        become_subreaper()
        held = list(self._gpus.fds) if self._gpus is not None else []
        order = Keep(
            command=tuple(command),
            opens=definition.opens,
            port=definition.fixed_port,
            grace_s=definition.grace,
            runner_pid=os.getpid(),
            folder=str(self._folder),
            control_fd=control,
            fds=tuple(fds),
        )
        arguments, descriptor = interpreter("dist_testing.services.keeper", KEEPER_ORDERS.to_wire(order).decode())
        gpu_env = self._gpus.env if self._gpus is not None else {}
        # Else Python keeps back what it prints to a file: the port, and its last words.
        env = {"PYTHONUNBUFFERED": "1", **os.environ, **definition.env, **gpu_env}
        try:
            with self.log_file.open("ab") as log:
                return subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[descriptor, control, *fds, *held],
                    env=env,
                    cwd=definition.cwd,
                    # Ctrl-C is for the runner, which stops the service.
                    start_new_session=True,
                )
        except OSError as error:
            raise self._error(
                f"its keeper cannot be started: {error}",
                "The folder cwd does not exist, or the machine has no room for another process.",
                "Correct cwd, or run fewer processes at once.",
            ) from error
        finally:
            for fd in (descriptor, *fds):
                os.close(fd)

    def _hear_start(self) -> None:
        told = self._receive()
        if isinstance(told, Refused):
            raise ServiceError(f"Service {self.definition.name}: {told.text}")
        if not isinstance(told, Started):
            raise self._error(
                "its keeper has ended at its start",
                "It was killed, or its interpreter cannot import dist_testing.",
                "See its log.",
            )
        self.pid, self.port = told.pid, told.port

    def _hear(self, limit_s: float, kind: type[Ended] | type[Over]) -> Over | None:
        """Take messages until one of a kind, or the end of the keeper, or the limit in seconds."""
        until_s = time.monotonic() + limit_s
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while poller.poll(1000 * max(0.0, until_s - time.monotonic())):
            told = self._receive()
            if isinstance(told, Over):
                return told
            if isinstance(told, Ended):
                self.ended = told
            elif told is None:
                # The keeper was killed, and the service with it, unless both have ended well.
                self.ended = self.ended or Ended(-signal.SIGKILL, time.monotonic())
                return None
            if isinstance(told, kind):
                return None
        return None

    def _receive(self) -> KeeperEvent | None:
        received = wire.receive(self._control, KEEPER_EVENTS)
        return received[0] if received is not None else None

    def _unhealthy(self) -> str:
        output = self.output()
        announces = self.definition.announces
        found = re.search(announces, output) if announces and not self.port else None
        if found is not None and re.fullmatch("[0-9]{1,5}", found[1] or "") and int(found[1]) < 1 << 16:
            self.port = int(found[1])
        try:
            return unhealthy_reason(self.definition, self, output)
        except Exception as error:
            raise self._error(
                f"its health check raised {summarise(error)}",
                "It has a bug, or met a service that is not ready; only an OSError or a false result says that.",
                "Correct it, or let it return False there.",
            ) from error

    def _error(self, what: str, cause: str, way_out: str) -> ServiceError:
        return ServiceError(f"Service {self.definition.name}: {what}.\n{cause}\n{way_out}\n{self.tail()}")


def broken(problems: Sequence[str], running: Running) -> str:
    """Return the text of an error: what is wrong with a service that has been stopped."""
    return (
        f"{'; '.join(problems)}.\n"
        "A service has to run until it gets SIGTERM, and to end then with all that it has started.\n"
        f"See its log, or what it starts in a session of its own.\n{running.tail()}"
    )


def started(definition: Definition, log_line: Callable[[str], None] = lambda line: None) -> Running:
    """Start a service, and wait until it is healthy. `log_line` takes a line on what it waits for."""
    running = Running(definition, log_line)
    running.wait_healthy()
    return running


def _lease(definition: Definition, log_line: Callable[[str], None]) -> WorldGpus | None:
    if not definition.gpus:
        return None
    # Late: most services need none.
    from dist_testing.gpus.devices import NVIDIA, VENDORS, gpus_present
    from dist_testing.gpus.world_gpus import WorldGpus

    vendor = next((one for one in VENDORS.values() if gpus_present(vendor=one)), NVIDIA)
    try:
        return WorldGpus.take(definition.gpus, vendor, limit_s=definition.timeout, on_wait=log_line)
    except LaunchError as error:
        raise ServiceError(f"Service {definition.name}: {error}") from error


def unhealthy_reason(definition: Definition, running: Address, output: str) -> str:
    """Return why a service cannot be used yet, such as "GET /health: 503 Service Unavailable"; "" if it can.

    `output` is what it has printed.
    """
    healthy = definition.healthy
    if definition.announces and not running.port:
        return f"its output does not announce a port by {definition.announces!r}"
    if isinstance(healthy, re.Pattern):
        return "" if healthy.search(output) else f"its output does not contain {healthy.pattern!r}"
    try:
        if callable(healthy):
            return "" if healthy(running) else f"{name_of(healthy)} returned nothing true"
        if healthy is None and not running.port:
            return ""
        if healthy not in (None, TCP):
            return _get(running, str(healthy))
        socket.create_connection((running.host, running.port), _LOOK_S).close()
        return ""
    except (OSError, http.client.HTTPException) as error:
        return summarise(error)


def _get(running: Address, path: str) -> str:
    # Not urllib, which may send the request to a proxy.
    connection = http.client.HTTPConnection(running.host, running.port, timeout=_LOOK_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
    finally:
        connection.close()
    return "" if _FIRST_GOOD <= answer.status < _FIRST_BAD else f"GET {path}: {answer.status} {answer.reason}"
