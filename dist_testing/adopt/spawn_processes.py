"""Forks the `multiprocessing.Process` objects of tests, and notes those that fail unnoticed."""

from __future__ import annotations

import functools
import multiprocessing.context
import os
from multiprocessing import popen_fork, process
from types import TracebackType
from typing import Any

from dist_testing.adopt.spawn_world import share_memory
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.launch.clean import unshareable_reasons
from dist_testing.core.process.lifetime import in_new_thread

# Whose processes are not the ranks of a test: data loaders, pools, managers.
_LIBRARIES = ("concurrent", "multiprocessing", "torch")
_BaseProcess: Any = process.BaseProcess


class TestProcessError(AssertionError):
    """A process of a test has failed, and the test has not looked at its exit code."""

    __test__ = False


class _Popen(popen_fork.Popen):
    """Forks from a new thread: a child of a thread that has used OpenMP would wait for its threads for ever."""

    def _launch(self, process_obj: Any) -> None:
        launch: Any = super()._launch  # type: ignore[misc]  # not in typeshed
        in_new_thread(lambda: launch(process_obj))


class Watch:
    """Notes the processes that a test starts. Use it as a context manager around the test."""

    _current: Watch | None = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        # With the name of the target: a process forgets it when it has started.
        self._started: list[tuple[Any, str]] = []
        # By identity: processes are not hashable by value.
        self._seen: set[int] = set()

    def __enter__(self) -> Watch:
        Watch._current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        Watch._current = None

    @classmethod
    def active(cls) -> Watch | None:
        """Return the watch of the running test; None on ranks and in other processes that a test has made."""
        watch = cls._current
        return watch if watch is not None and watch._pid == os.getpid() else None

    def started(self, started: Any) -> None:
        """Note a process that the test has started."""
        self._started.append((started, _target(started)))

    def looked_at(self, seen: object) -> None:
        """Note that the test judges a process itself: it has read its exit code, or has ended it."""
        self._seen.add(id(seen))

    def judge(self, nodeid: str) -> None:
        """Wait for the processes that the test has not judged, except daemons, and fail if one has failed."""
        __tracebackhide__ = True
        failed = []
        for one, target in self._started:
            if id(one) in self._seen or (one.daemon and one.is_alive()):
                continue
            one.join()
            code = one._popen.poll() if one._popen is not None else 0
            if code:
                failed.append(f"{one.name} ({target}) ended by {exit_name(code)}")
        if failed:
            raise TestProcessError(
                f"{nodeid}: {len(failed)} of {len(self._started)} process(es) failed: {'; '.join(failed)}.\n"
                "The test has passed without a look at their exit codes; what they raised is in the output.\n"
                "Correct what failed, or check `process.exitcode` in the test if it is expected."
            )


def install_processes() -> None:
    """Replace how processes of multiprocessing start, for this process."""
    if getattr(_BaseProcess, "_dist_testing_start", None) is not None:
        return
    start, exitcode = _BaseProcess.start, _BaseProcess.exitcode

    def started(self: Any) -> None:
        watch = Watch.active()
        if watch is not None and not _is_of_library(self):
            watch.started(self)
        start(self)

    _BaseProcess._dist_testing_start = start
    _BaseProcess.start, _BaseProcess.exitcode = started, property(_looking(exitcode.fget))
    _BaseProcess.terminate, _BaseProcess.kill = _looking(_BaseProcess.terminate), _looking(_BaseProcess.kill)
    for cls in (multiprocessing.context.SpawnProcess, multiprocessing.context.ForkServerProcess):
        _fork_tests_of(cls)


def _fork_tests_of(cls: Any) -> None:
    original = cls._Popen

    def popen(process_obj: Any) -> Any:
        if Watch.active() is None or _is_of_library(process_obj) or unshareable_reasons():
            return original(process_obj)
        # As their pickle does.
        share_memory((process_obj._args, process_obj._kwargs))
        return _Popen(process_obj)

    cls._Popen = staticmethod(popen)


def _looking(method: Any) -> Any:
    """Return a method of a process whose call means that the test judges the process itself."""

    @functools.wraps(method)
    def call(self: Any) -> Any:
        if (watch := Watch.active()) is not None:
            watch.looked_at(self)
        return method(self)

    return call


def _is_of_library(one: Any) -> bool:
    """Return whether a library has made the process for itself."""
    target = one._target if one._target is not None else type(one)
    return (getattr(target, "__module__", None) or "").partition(".")[0] in _LIBRARIES


def _target(one: Any) -> str:
    target = one._target if one._target is not None else type(one)
    return str(getattr(target, "__qualname__", target))
