"""A plugin of pytest for suites that call `torch.multiprocessing.spawn`: `pytest -p dist_testing.adopt.spawn`.

The functions `spawn` and `start_processes` of torch make their ranks on the engine, forked from the test's process.
`multiprocessing.Process` objects of the tests are forked, too, and a test fails if one of them failed unnoticed.
"""

from __future__ import annotations

import functools
import multiprocessing.context
import os
from collections.abc import Generator
from multiprocessing import popen_fork, process
from types import TracebackType
from typing import Any

import pytest

from dist_testing.adopt.spawn_world import install_spawn, open_contexts, share_memory
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.launch.clean import unshareable_reasons
from dist_testing.core.process.lifetime import in_new_thread

# Whose processes are not the ranks of a test: data loaders, pools, managers.
_LIBRARIES = ("concurrent", "multiprocessing", "torch")
_BaseProcess: Any = process.BaseProcess


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge, at the end of a test, the processes that the test itself has not judged."""
    __tracebackhide__ = True
    with Watch() as watch:
        result = yield
        for context in open_contexts():
            context.join()
        watch.judge(item.nodeid)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    """Remove the ranks of a test that has failed before it waited for them."""
    try:
        return (yield)
    finally:
        for context in open_contexts():
            context.close()


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


# At import: pytest imports the plugin before it collects tests, which may import the functions by name.
install_spawn()
install_processes()
