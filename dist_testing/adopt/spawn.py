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
from typing import Any, ClassVar

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
    watch = Watch.current = Watch()
    try:
        result = yield
        for context in open_contexts():
            context.join()
        watch.judge(item.nodeid)
    finally:
        Watch.current = None
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
    """The processes that a test starts."""

    current: ClassVar[Watch | None] = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        # The processes that the test has started, with the names of their targets, which they forget.
        self.started: list[tuple[Any, str]] = []
        # Those that the test judges itself: it has read the exit code, or has ended the process. By identity, because
        # processes are not hashable by value.
        self.looked_at: set[int] = set()

    @classmethod
    def active(cls) -> Watch | None:
        """Return the watch of the running test; None on ranks and in other processes that a test has made."""
        return cls.current if cls.current is not None and cls.current._pid == os.getpid() else None

    def judge(self, nodeid: str) -> None:
        """Wait for the processes that the test has not judged, except daemons, and fail if one has failed."""
        __tracebackhide__ = True
        failed = []
        for one, target in self.started:
            if id(one) in self.looked_at or (one.daemon and one.is_alive()):
                continue
            one.join()
            code = one._popen.poll() if one._popen is not None else 0
            if code:
                failed.append(f"{one.name} ({target}) ended by {exit_name(code)}")
        if failed:
            raise TestProcessError(
                f"{nodeid}: {len(failed)} of {len(self.started)} process(es) failed: {'; '.join(failed)}.\n"
                "The test has passed without a look at their exit codes; what they raised is in the output.\n"
                "Correct what failed, or check `process.exitcode` in the test if it is expected."
            )


def install_processes() -> None:
    """Replace how processes of multiprocessing start, for this process."""
    start, exitcode = _BaseProcess.start, _BaseProcess.exitcode

    def started(self: Any) -> None:
        watch = Watch.active()
        if watch is not None and not _is_of_library(self):
            watch.started.append((self, str(getattr(_target(self), "__qualname__", _target(self)))))
        start(self)

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
            watch.looked_at.add(id(self))
        return method(self)

    return call


def _is_of_library(one: Any) -> bool:
    """Return whether a library has made the process for itself."""
    return (getattr(_target(one), "__module__", None) or "").partition(".")[0] in _LIBRARIES


def _target(one: Any) -> Any:
    """Return the function of a process; its class, if that has the code."""
    return one._target if one._target is not None else type(one)


# At import: pytest imports the plugin before it collects tests, which may import the functions by name.
install_spawn()
install_processes()
