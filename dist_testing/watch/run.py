"""A run, which is a fork of the watcher that runs tests; and the project, with what its runs have told the watcher."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from dist_testing.core.process.lifetime import die_with_parent, fork, watch_child
from dist_testing.core.process.orphans import Orphans

# Seconds until a run that was told to stop is killed. Its fork server then removes the ranks.
_STOP_LIMIT_S = 10.0
_READ_BYTES = 1 << 26
_CONFTEST = "conftest.py"


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


@dataclass(slots=True)
class Project:
    """What the command line asks to watch, and what the runs have told."""

    directory: str  # where pytest was started
    root: str  # pytest's root folder, which node ids begin at
    arguments: tuple[str, ...]  # files, folders and node ids
    configuration: str  # pytest's configuration file; "" for none
    has_package_names: bool  # whether arguments may be names of packages
    patterns: tuple[str, ...]  # pytest's patterns for names of test files
    files: set[str] = field(default_factory=set)  # files that runs have read
    tests: set[str] = field(default_factory=set)  # files with tests
    # Node ids of the tests that failed when they ran last; the first failure first.
    failed: dict[str, None] = field(default_factory=dict)

    def path_of(self, argument: str) -> str:
        """Return the file or folder that an argument names."""
        return os.path.normpath(os.path.join(self.directory, argument.partition("::")[0]))

    def present(self) -> tuple[str, ...]:
        """Return the arguments that pytest may find."""
        return tuple(one for one in self.arguments if self.has_package_names or os.path.exists(self.path_of(one)))

    def conftests_above(self, path: str) -> list[str]:
        """Return the names that conftest files for a file or folder have, up to the root, whether they exist or not."""
        return [str(folder / _CONFTEST) for folder in Path(path).parents if folder.is_relative_to(self.root)]

    def learn(self, told: Told, order: Order) -> None:
        """Take over the results of a run, also of one that was killed or interrupted (pytest's exit code 2)."""
        self.files |= told.files
        self.failed.update(dict.fromkeys(sorted(told.failed - self.failed.keys())))
        is_selected = bool(order.pattern or order.only_failed or told.code in (None, 2))
        for node_id in list(self.failed):
            file = os.path.normpath(os.path.join(self.root, node_id.partition("::")[0]))
            is_seen = node_id in told.outcomes
            # A test that is not there any more cannot fail.
            is_gone = not os.path.exists(file) or (file in told.tests and not is_seen and not is_selected)
            if is_gone or (is_seen and node_id not in told.failed):
                del self.failed[node_id]
        self.tests = {path for path in self.tests | told.tests if os.path.exists(path)}

    def _is_test_file(self, path: str) -> bool:
        """Return whether a file is for tests alone, so that only files with its name in their text can need it.

        A module can have tests, too: with --doctest-modules, or by a plug-in that makes a test of each source.
        """
        is_named = any(path == self.path_of(argument) for argument in self.arguments)
        return is_named or not path.endswith(".py") or any(Path(path).match(pattern) for pattern in self.patterns)

    def unaffected(self, changed: Collection[str]) -> frozenset[str]:
        """Return the test files that a change does not concern: none, if other files than tests have changed."""
        affected: set[str] = set()
        for path in changed:
            name = os.path.basename(path)
            if name == _CONFTEST:
                affected |= {test for test in self.tests if Path(path).parent in Path(test).parents}
            elif self._is_test_file(path):
                affected |= {path} | {test for test in self.tests if _names(test, name.removesuffix(".py"))}
            else:
                return frozenset()
        return frozenset(self.tests - affected)


def syntax_error(path: str) -> str:
    """Return `file:line: what is wrong` for a Python file that cannot be parsed; "" if it can, or does not exist."""
    try:
        ast.parse(Path(path).read_bytes(), path)
    except SyntaxError as error:
        text = (error.text or "").strip()
        return f"{path}:{error.lineno or 1}: {error.msg}{f': {text}' if text else ''}"
    except ValueError as error:
        return f"{path}:1: {error}"
    except OSError:
        return ""
    return ""


def _names(path: str, module: str) -> bool:
    """Return whether a source has the name of a module as a word, and so may import it."""
    try:
        source = Path(path).read_bytes()
    except OSError:
        return False
    return re.search(rb"\b%b\b" % re.escape(os.fsencode(module)), source) is not None
