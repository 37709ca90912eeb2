"""Watches the `multiprocessing.Process` objects that a test starts, and judges those that the test does not judge.

They stay processes of multiprocessing. A rank tells what no exit code shows: that it is one, that it calls
`os._exit(0)`, and which processes it leaves behind. A wait of the test that no process can end any more ends at once.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing.connection
import multiprocessing.context
import os
import stat
import threading
import time
import unittest
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing import process
from typing import Any, ClassVar

import pytest

from dist_testing.adopt.as_process import EXITS, LEFT, RANK, TOLD, SpawnedPopen, tell_end
from dist_testing.adopt.on_ranks import keeps_own_way
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.ground.procfs import open_files

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# Whose processes are not the ranks of a test: data loaders, pools, managers.
_LIBRARIES = ("concurrent", "multiprocessing", "torch")
# A thread of a queue of multiprocessing, by its name. It writes what this process has put.
_FEEDER = "QueueFeederThread"
# For what these threads still write. Seconds.
_GRACE_S = 1.0
_TOLD_BYTES = 1 << 16
_BaseProcess: Any = process.BaseProcess
_Connection: Any = multiprocessing.connection.Connection
_SKIPS = (pytest.skip.Exception, unittest.SkipTest)


class TestProcessError(AssertionError):
    """A process of a test has failed, and the test has not looked at its exit code."""

    __test__ = False


@dataclass(slots=True)
class _Started:
    one: Any  # the process object
    popen: Any  # what multiprocessing knows of it; it stays valid when the test closes the object
    target: str
    told: int  # the file that it tells in
    is_judged: bool = False  # whether the test has read its exit code, or has ended it
    is_ended: bool = False  # whether the test has ended it

    def problem(self, *, judged: bool) -> str:
        """Return what is wrong with a process that has ended; "" if nothing is.

        `judged`: whether an exit code that the test has read counts, too.
        """
        code = self.popen.poll()
        told: dict[str, list[str]] = defaultdict(list)
        for line in os.pread(self.told, _TOLD_BYTES, 0).decode(errors="replace").splitlines():
            word, _, text = line.partition(" ")
            told[word].append(text)
        rank = f"rank {told[RANK][-1]}, " if told[RANK] else ""
        name = f"{rank}{self.one.name} ({self.target})"
        if code == 0 and told[EXITS]:
            return f"{name} called os._exit(0) before the end of its function"
        if code and not (self.is_ended if judged else self.is_judged):
            return f"{name} ended by {exit_name(code)}"
        return f"{name} left processes behind: {'; '.join(told[LEFT])}" if told[LEFT] else ""


class Watch:
    """Watches the processes that a test starts in the block, and judges them, also if the test skips.

    Those that have ended are judged at the end of the block. The test's fixtures can end the others: `finish`.
    """

    current: ClassVar[Watch | None] = None  # of the test that was called last

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._pid = os.getpid()
        self._is_over = False  # whether the block has ended
        self._threads = set(threading.enumerate())
        self._started: list[_Started] = []
        earlier = Watch.current
        if earlier is not None and earlier._is_over and earlier._pid == self._pid:
            self._started = earlier._started  # those that the fixtures of an earlier test may still end

    def __enter__(self) -> None:
        Watch.current = self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        __tracebackhide__ = True
        self._is_over = True
        # What a method of unittest has raised. pytest takes it for the result, whatever the call raises.
        of_unittest = vars(self._item).get("_excinfo") or []
        errors = [one.value for one in of_unittest] + ([] if error is None else [error])
        if all(isinstance(one, _SKIPS) for one in errors):
            self._judge(of_unittest)
            for started in self._started:
                # A daemon that still runs has no end of its own.
                started.is_judged |= started.one.daemon
        else:
            if problems := self._problems(judged=True):
                self._item.add_report_section("call", "processes", problems)
            self.close()

    def finish(self, item: Any) -> None:
        """Wait, after the test's teardown, for the processes that are not judged, and fail if one has failed.

        Those that still run stay for the next test, if a fixture of a wider scope may end them.
        """
        __tracebackhide__ = True
        may_end_later = _lives_on(item)
        for started in self._started:
            if not started.is_judged and not may_end_later:
                started.popen.wait()
        self._judge([])
        running = [started for started in self._started if not started.is_judged and started.popen.poll() is None]
        for started in running:
            self._started.remove(started)
        self.close()
        self._started = running

    def close(self) -> None:
        """Forget the processes."""
        while self._started:
            os.close(self._started.pop().told)

    @classmethod
    def active(cls) -> Watch | None:
        """Return the watch of the test whose call runs; None on ranks and in other processes that a test has made."""
        watch = cls.current
        return None if watch is None or watch._is_over or watch._pid != os.getpid() else watch

    @classmethod
    def of_wait(cls, connection: Any) -> Watch | None:
        """Return the watch of a wait in the main thread for a pipe, of which the kernel tells who else has it."""
        watch = cls.active()
        if watch is None or not watch._started or threading.current_thread() is not threading.main_thread():
            return None
        return watch if stat.S_ISFIFO(os.fstat(connection.fileno()).st_mode) else None

    def start(self, one: Any, start: Callable[[Any], None]) -> None:
        """Start a process."""
        # It forgets its target.
        target = _target_name(one)
        told = os.memfd_create("dist-testing-told")
        vars(one)[TOLD] = told
        try:
            start(one)
        except BaseException:
            os.close(told)
            raise
        finally:
            del vars(one)[TOLD]
        self._started.append(_Started(one, one._popen, target, told))

    def looks_at(self, one: Any, *, ends: bool) -> None:
        """Note that the test judges a process; `ends`: that it ends the process."""
        for started in self._started:
            # Processes are not hashable by value.
            if started.one is one:
                started.is_judged = True
                started.is_ended |= ends and started.popen.poll() is None

    def _problems(self, *, judged: bool) -> str:
        """Return what is wrong with the processes that have ended; "" if nothing is. Signals come first."""
        ended = [started for started in self._started if started.popen.poll() is not None]
        ended.sort(key=lambda started: started.popen.poll() >= 0)
        found = [problem for started in ended if (problem := started.problem(judged=judged))]
        return f"{len(found)} of {len(self._started)} process(es) failed: {'; '.join(found)}" if found else ""

    def _judge(self, of_unittest: list[Any]) -> None:
        """Fail if a process that the test has not judged has failed."""
        __tracebackhide__ = True
        if problems := self._problems(judged=False):
            # A test that has failed waits for no other process.
            self.close()
            of_unittest.clear()
            raise TestProcessError(
                f"{self._item.nodeid}: {problems}.\n"
                "The test itself has not failed; what the processes raised is in the output.\n"
                "Correct what failed. If an exit code is expected, check `process.exitcode`; end a rank by sys.exit(0)."
            )

    def can_read(self, connection: Any, timeout: float | None) -> bool:
        """Wait until a connection has something to read, at most for `timeout` seconds; None for no limit.

        The wait also ends if no process is left that could write. Then the result is False, as at a timeout. Without a
        timeout, raises TestProcessError.
        """
        __tracebackhide__ = True
        end_s = None if timeout is None else time.monotonic() + timeout
        alive = {started.popen.sentinel for started in self._started if started.popen.poll() is None}
        while alive:
            if connection in (ready := _wait([connection, *alive], end_s)):
                return True
            if not ready:
                return False
            alive.difference_update(ready)
        grace_s = time.monotonic() + _GRACE_S
        if _wait([connection], grace_s if end_s is None else min(grace_s, end_s)):
            return True
        if self._can_be_written(connection):
            return bool(_wait([connection], end_s))
        if end_s is not None:
            return False
        problems = self._problems(judged=True) or "all processes have ended"
        raise TestProcessError(
            f"{self._item.nodeid}: the test waits for a queue or a pipe; {problems}.\n"
            "No other process has it, and no thread of the test runs, so the wait would never end.\n"
            "Correct what ended the processes, or give the wait a timeout if that is expected."
        )

    def _can_be_written(self, connection: Any) -> bool:
        """Whether another process has the pipe, or a thread of the test may have it."""
        threads = set(threading.enumerate()) - self._threads
        are_alive = any(started.popen.poll() is None for started in self._started)
        if are_alive or any(thread.name != _FEEDER for thread in threads):
            return True
        pipe = os.readlink(f"/proc/self/fd/{connection.fileno()}")
        others = (pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != self._pid)
        return any(pipe in _files_of(pid) for pid in others)


def _lives_on(item: Any) -> bool:
    """Whether a fixture that has given an object to the test has a wider scope, and code that runs at its end."""
    known = getattr(item, "_fixtureinfo", None)
    return known is not None and any(
        inspect.isgeneratorfunction(fixture.func) and (fixture.cached_result or [None])[0] is not None
        for definitions in known.name2fixturedefs.values()
        for fixture in definitions
    )


def _files_of(pid: str) -> Collection[str]:
    try:
        return open_files(pid).values()
    except OSError:
        # It has just ended, or belongs to another user.
        return ()


def _wait(waited: list[Any], end_s: float | None) -> list[Any]:
    return multiprocessing.connection.wait(waited, None if end_s is None else max(0.0, end_s - time.monotonic()))


def install_processes() -> None:
    """Replace how processes of multiprocessing start, for this process."""
    start, exitcode, bootstrap = _BaseProcess.start, _BaseProcess.exitcode, _BaseProcess._bootstrap

    def started(self: Any) -> None:
        if (watch := Watch.active()) is None or _is_of_library(self):
            start(self)
        else:
            watch.start(self, start)

    def telling(self: Any, parent_sentinel: int | None = None) -> int:
        return tell_end(self, lambda: bootstrap(self, parent_sentinel))

    _BaseProcess.start, _BaseProcess._bootstrap = started, telling
    _BaseProcess.exitcode = property(_looking(exitcode.fget))
    for name in ("terminate", "kill"):
        setattr(_BaseProcess, name, _looking(getattr(_BaseProcess, name), ends=True))
    for cls in (multiprocessing.context.SpawnProcess, multiprocessing.context.ForkServerProcess):
        _fork_tests_of(cls)
    _end_waits()


def _fork_tests_of(cls: Any) -> None:
    original = cls._Popen

    def popen(process_obj: Any) -> Any:
        is_own = Watch.active() is None or _is_of_library(process_obj)
        if is_own or keeps_own_way(_target_name(process_obj), "a fresh interpreter runs it"):
            return original(process_obj)
        return SpawnedPopen(process_obj)

    cls._Popen = staticmethod(popen)


def _looking(method: Any, *, ends: bool = False) -> Any:
    """Return a method of a process whose call means that the test judges the process itself, or `ends` it."""

    @functools.wraps(method)
    def call(self: Any) -> Any:
        if (watch := Watch.current) is not None:
            watch.looks_at(self, ends=ends)
        return method(self)

    return call


def _end_waits() -> None:
    """Have reads of pipes, and so of queues, end when no process is left that could write."""
    receive, poll = _Connection._recv_bytes, _Connection._poll

    def receive_bytes(self: Any, maxsize: int | None = None) -> Any:
        __tracebackhide__ = True
        if (watch := Watch.of_wait(self)) is not None:
            watch.can_read(self, None)
        return receive(self, maxsize)

    def poll_for(self: Any, timeout: float | None) -> bool:
        __tracebackhide__ = True
        if timeout != 0 and (watch := Watch.of_wait(self)) is not None:
            return watch.can_read(self, timeout)
        return bool(poll(self, timeout))

    _Connection._recv_bytes, _Connection._poll = receive_bytes, poll_for


def _is_of_library(one: Any) -> bool:
    """Return whether a library has made the process for itself."""
    return (getattr(_target(one), "__module__", None) or "").partition(".")[0] in _LIBRARIES


def _target_name(one: Any) -> str:
    return str(getattr(_target(one), "__qualname__", _target(one)))


def _target(one: Any) -> Any:
    """Return the function of a process; its class, if that has the code."""
    return one._target if one._target is not None else type(one)
