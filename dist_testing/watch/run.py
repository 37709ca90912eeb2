"""A run: a fork of the watcher that runs tests, and what it tells the watcher."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field

from dist_testing.core.process.lifetime import die_with_parent, fork, watch_child
from dist_testing.core.process.orphans import Orphans

# Seconds until a run that was told to stop is killed. Its fork server then removes the ranks.
_STOP_LIMIT_S = 10.0
_READ_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Order:
    """Which tests a run runs."""

    arguments: tuple[str, ...] = ()  # files, folders and node ids; empty for those of the command line
    left_out: frozenset[str] = frozenset()  # test files that are not collected
    failed: tuple[str, ...] = ()  # node ids of the tests that failed last, which come first
    only_failed: bool = False  # whether the run leaves out all other tests
    pattern: str = ""  # expression for `-k`; "" for none
    debug_rank: int | None = None  # the rank that gets the terminal; None for none


@dataclass(slots=True)
class Told:
    """What a run has told."""

    files: set[str] = field(default_factory=set)  # all files whose change concerns the tests, without third-party ones
    tests: set[str] = field(default_factory=set)  # files with tests or with errors
    outcomes: dict[str, str] = field(default_factory=dict)  # node id -> "passed", "failed" or "skipped"
    code: int | None = None  # exit code of its session, once that is over

    @property
    def failed(self) -> set[str]:
        """Node ids of the tests, and of the files, that have failed."""
        return {node_id for node_id, outcome in self.outcomes.items() if outcome == "failed"}

    def take(self, line: bytes) -> None:
        """Take a line of the run."""
        match json.loads(line):
            case {"files": files, "tests": tests}:
                self.files.update(files)
                self.tests.update(tests)
            case {"test": node_id, "outcome": outcome}:
                if self.outcomes.get(node_id) != "failed":
                    self.outcomes[node_id] = outcome
            case {"code": code}:
                self.code = code


@dataclass(frozen=True, slots=True)
class Fork:
    """The run, in its own process: its order, and the file in memory through which it tells the watcher."""

    order: Order
    fd: int
    pid: int

    def tell(self, **fields: object) -> None:
        """Write a line for `Told.take`."""
        # Ranks have inherited this object, and their hooks reach it.
        if os.getpid() == self.pid:
            # A test may have closed the descriptor. The run reports to the terminal in any case.
            with contextlib.suppress(OSError):
                os.write(self.fd, json.dumps(fields).encode() + b"\n")


@dataclass(slots=True)
class Run:
    """The run, in the watcher."""

    pid: int
    pidfd: int
    fd: int
    told: Told = field(default_factory=Told)
    # Its exit code, or the negative number of a signal; None while it or a process that it has left lives.
    code: int | None = None
    _position: int = 0
    _kill_at_s: float = 0.0

    def read(self) -> None:
        """Take what the run has told since the last call."""
        *lines, _ = os.pread(self.fd, _READ_BYTES, self._position).split(b"\n")
        for line in lines:
            self._position += len(line) + 1
            self.told.take(line)

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
        self.read()
        os.close(self.fd)
        Orphans().remove()
        self.code = os.waitstatus_to_exitcode(status)


def fork_run(order: Order) -> Run | Fork:
    """Fork a run. Returns a `Fork` in the new process, with SIGTERM blocked, and a `Run` in this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    fd = os.memfd_create("dist-testing-watch")
    # The signal that stops the run must wait until the run can handle it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pid = -1
    try:
        pid = fork()
        if pid == 0:
            die_with_parent(parent, signal.SIGTERM)
            importlib.invalidate_caches()
            return Fork(order, fd, os.getpid())
        return Run(pid, watch_child(pid), fd)
    except OSError:
        os.close(fd)
        raise
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
