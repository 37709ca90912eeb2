"""A plugin of pytest for suites that call `torch.multiprocessing.spawn`: `pytest -p dist_testing.adopt.spawn`.

The functions `spawn` and `start_processes` of torch make their ranks on the engine, forked from the test's process.
`multiprocessing.Process` objects of the tests are forked, too, and a test fails if one of them failed unnoticed.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

# First: it imports torch so that Ctrl-C ends the run.
from dist_testing.adopt.on_ranks import is_rank, keeps_own_way, ranks_of, share_memory

# isort: split
import torch
import torch.multiprocessing
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from dist_testing.adopt.as_process import run_as_process, set_root
from dist_testing.adopt.processes import Watch, install_processes
from dist_testing.core.ground.case import CaseFailedError, CaseResult
from dist_testing.core.ground.error_text import name_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind, Status, exit_name
from dist_testing.core.ground.spec import check_world_size
from dist_testing.core.unittest.exits import exit_code
from dist_testing.core.unittest.handles import RankHandle
from dist_testing.functions.run import CallWorld
from dist_testing.programs.program import NO_LIMIT_S

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_EXAMPLE = "Pass the number of processes as nprocs."
_METHODS = ("spawn", "fork", "forkserver")
# The module of torch. The package has a function of the same name.
_torch: Any = sys.modules["torch.multiprocessing.spawn"]

_original: Callable[..., Any] = _torch.start_processes
_contexts: list[RanksContext] = []


def pytest_configure(config: pytest.Config) -> None:
    """Tell processes where the suite is."""
    set_root(str(config.rootpath))


def pytest_unconfigure() -> None:
    """Remove the ranks of fixtures that have not waited for them."""
    for context in list(_contexts):
        context.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge, at the end of a test, the processes that the test itself has not judged."""
    __tracebackhide__ = True
    with Watch(item):
        result = yield
        for context in open_contexts():
            context.join()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remove the ranks of a test that has failed before it waited for them; judge the processes that still ran."""
    __tracebackhide__ = True
    watch = Watch.current
    try:
        result = yield
        if watch is not None:
            watch.finish(item)
        return result
    except BaseException:
        if watch is not None:
            watch.close()
        raise
    finally:
        for context in open_contexts():
            context.close()


class _RanksError(CaseFailedError):
    # The process is gone. torch's exceptions name it for logs only.
    error_pid = -1

    def __init__(self, text: str, result: CaseResult) -> None:
        CaseFailedError.__init__(self, text, result)
        self.msg, self.error_index = text, result.verdict.culprit or 0


class RanksRaisedError(_RanksError, ProcessRaisedException):
    """A rank has raised; torch's own exception, with the report as its text."""


class RanksExitedError(_RanksError, ProcessExitedException):
    """The process of a rank has ended early; torch's own exception, with the report as its text."""

    def __init__(self, text: str, result: CaseResult) -> None:
        _RanksError.__init__(self, text, result)
        self.exit_code = exit_code(result.outcomes[self.error_index])
        self.signal_name = exit_name(self.exit_code).partition(" ")[0] if self.exit_code < 0 else None


class RanksContext:
    """What `start_processes(join=False)` returns, with the names of torch's `ProcessContext`."""

    def __init__(self, world: CallWorld, *, daemon: bool) -> None:
        self._world = world
        self._running = world.start()
        self._is_daemon = daemon
        self.is_of_test = Watch.active() is not None  # else a fixture has made the ranks, and ends them
        self._error: BaseException | None = None
        self._is_over = False
        self.processes = [RankHandle(self._running, rank) for rank in range(self._running.case.world_size)]
        _contexts.append(self)

    @property
    def is_unjudged(self) -> bool:
        """Whether the ranks end with the test, without a verdict: daemons, and ranks that the test ends itself."""
        return self._is_daemon or any(handle.is_signalled for handle in self.processes)

    def pids(self) -> list[int]:
        """Return the process ids of the ranks, by rank."""
        return [handle.pid or -1 for handle in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the ranks and judge them; return whether all have ended.

        `timeout`: seconds to wait at most; None for the limit of the session. `grace_period` has no effect: the engine
        ends the ranks itself. If a rank failed, raises what `_error_class` says.
        """
        del grace_period
        __tracebackhide__ = True
        if self._is_over:
            if self._error is not None:
                raise self._error
            return True
        if timeout is not None:
            # A rank that fails ends the others, so all have ended as soon as one has failed.
            until_s = time.monotonic() + max(0.0, timeout)
            for handle in self.processes:
                handle.join(max(0.0, until_s - time.monotonic()))
            if any(handle.is_alive() for handle in self.processes):
                return False
        try:
            result = self._world.finish(self._running)
            for handle, outcome in zip(self.processes, result.outcomes, strict=True):
                handle.settle(outcome)
            self._world.judge(result, _error_class(result))
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._end()
        return True

    def close(self) -> None:
        """Kill the ranks, if they are not over. No result is needed."""
        if not self._is_over:
            try:
                self._world.engine.abandon(self._running)
            finally:
                self._end()

    def _end(self) -> None:
        self._is_over = True
        if self in _contexts:
            _contexts.remove(self)
        self._world.engine.close()


def open_contexts() -> list[RanksContext]:
    """Return the contexts that the test has not waited for, outside ranks; end those that need no verdict."""
    if is_rank():
        return []
    for context in [context for context in _contexts if context.is_unjudged and context.is_of_test]:
        context.close()
    return [context for context in _contexts if context.is_of_test]


def _on_engine(original: Callable[..., Any]) -> Callable[..., RanksContext | None]:
    """Return the replacement of one of torch's functions. Both take the same arguments."""

    @functools.wraps(original)
    def start(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        **more: Any,
    ) -> RanksContext | None:
        __tracebackhide__ = True
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        # torchrun's agent, inside a test, looks after its processes itself; and a rank makes processes, no world.
        is_own = is_rank() or caller.startswith("torch.")
        if is_own or keeps_own_way(getattr(fn, "__qualname__", str(fn)), "torch's own spawn runs it"):
            context: RanksContext | None = _original(fn, args, nprocs, join, daemon, start_method, **more)
            return context
        name = name_of(fn)
        subject = f"torch.multiprocessing.spawn({name})"
        check_world_size(subject, nprocs, _EXAMPLE)
        if start_method not in _METHODS:
            raise UsageError(
                f"{subject} with start_method = {start_method!r}; expected one of {', '.join(_METHODS)}.\n"
                "The adapter dist_testing.adopt.spawn makes the processes, by fork, whatever the method.\n"
                "Correct the name."
            )
        if start_method != "fork":
            # Pickle moves tensors into shared memory, so that caller and ranks see the changes of each other.
            share_memory(args)
        # The ranks of a fixture live as long as the fixture.
        limit_s = None if join or Watch.active() is not None else NO_LIMIT_S
        world = ranks_of(functools.partial(_call, fn, args), name, nprocs, limit_s, subject=subject)
        if not join:
            return RanksContext(world, daemon=daemon)
        with world:
            result = world.run()
            world.judge(result, _error_class(result))
        return None

    return start


def _call(fn: Callable[..., Any], args: tuple[Any, ...], rank: int) -> None:
    """Call the function on a rank, which then ends as a process of multiprocessing does."""

    def call() -> None:
        try:
            fn(rank, *args)
        except SystemExit as error:
            # A process of multiprocessing that leaves so has succeeded.
            if error.code:
                raise

    run_as_process(call)


def _error_class(result: CaseResult) -> type[CaseFailedError]:
    if result.verdict.status is Status.FAILED and result.verdict.culprit is not None:
        kind = result.outcomes[result.verdict.culprit].kind
        if kind is Kind.RAISED:
            return RanksRaisedError
        if kind in (Kind.EXITED, Kind.SIGNALLED):
            return RanksExitedError
    return CaseFailedError


# At import: pytest imports the plugin before it collects tests, which may import the functions by name.
for _name in ("spawn", "start_processes"):
    _replacement = _on_engine(getattr(_torch, _name))
    for _owner in (_torch, torch.multiprocessing):
        setattr(_owner, _name, _replacement)
install_processes()
