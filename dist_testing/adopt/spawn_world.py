"""Puts the engine in the place of `torch.multiprocessing.spawn` and `start_processes`."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.multiprocessing
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from dist_testing.core.events.cases import RankOutput
from dist_testing.core.ground.case import CaseFailedError, CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind, Status, exit_name
from dist_testing.core.ground.spec import check_world_size
from dist_testing.core.launch.clean import unshareable_reasons
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.session.session import current_session
from dist_testing.core.unittest.exits import exit_code
from dist_testing.core.unittest.handles import RankHandle
from dist_testing.functions.run import call_spec
from dist_testing.functions.spawned import as_spawned_rank
from dist_testing.functions.world import CallWorld

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_EXAMPLE = "Pass the number of processes as nprocs."
_METHODS = ("spawn", "fork", "forkserver")
# The module of torch. The package has a function of the same name.
_torch: Any = sys.modules["torch.multiprocessing.spawn"]
_package: Any = torch.multiprocessing

_original: Callable[..., Any] = _torch.start_processes
_contexts: list[RanksContext] = []
# Whether this process is a rank, where the functions are torch's own.
_is_rank = [False]
_told: set[str] = set()


class RanksRaisedError(CaseFailedError, ProcessRaisedException):
    """A rank has raised; torch's own exception, with the report as its text."""

    def __init__(self, text: str, result: CaseResult) -> None:
        CaseFailedError.__init__(self, text, result)
        self.msg, self.error_index, self.error_pid = text, _culprit(result), _pid(result)


class RanksExitedError(CaseFailedError, ProcessExitedException):
    """The process of a rank has ended early; torch's own exception, with the report as its text."""

    def __init__(self, text: str, result: CaseResult) -> None:
        CaseFailedError.__init__(self, text, result)
        self.msg, self.error_index, self.error_pid = text, _culprit(result), _pid(result)
        self.exit_code = exit_code(result.outcomes[self.error_index])
        self.signal_name = exit_name(self.exit_code).partition(" ")[0] if self.exit_code < 0 else None


def _culprit(result: CaseResult) -> int:
    return 0 if result.verdict.culprit is None else result.verdict.culprit


def _pid(result: CaseResult) -> int:
    # The process is gone. torch's exceptions name it for logs only.
    del result
    return -1


class RanksContext:
    """What `start_processes(join=False)` returns, with the names of torch's `ProcessContext`.

    Attributes:
        processes: A handle for each rank.
    """

    def __init__(self, world: CallWorld, *, daemon: bool) -> None:
        self._world = world
        self._running = world.start()
        self._is_daemon = daemon
        self._error: BaseException | None = None
        self._is_over = False
        self.processes = [RankHandle(self._running, rank) for rank in range(self._running.case.world_size)]
        _contexts.append(self)

    def pids(self) -> list[int]:
        """Return the process ids of the ranks, by rank."""
        return [handle.pid or -1 for handle in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the ranks and judge them.

        Args:
            timeout: Seconds to wait at most; None for the limit of the session.
            grace_period: Has no effect: the engine ends the ranks itself.

        Returns:
            Whether all ranks have ended.

        Raises:
            CaseFailedError: If a rank failed; also `ProcessRaisedException` or `ProcessExitedException`.
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
        self._world.close()

    @property
    def is_daemon(self) -> bool:
        """Whether the ranks end with the test, without a verdict."""
        return self._is_daemon


def open_contexts() -> list[RanksContext]:
    """Return the contexts of this process that have not been waited for; end those of daemons."""
    if _is_rank[0]:
        return []
    for context in [context for context in _contexts if context.is_daemon]:
        context.close()
    return list(_contexts)


def install_spawn() -> None:
    """Replace torch's functions for this process."""
    spawn, start_processes = _on_engine(_torch.spawn), _on_engine(_original)
    for owner in (_torch, _package):
        owner.spawn, owner.start_processes = spawn, start_processes


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
        return _start(sys._getframe(1), fn, args, nprocs, join, daemon, start_method, more)

    return start


def _start(
    frame: Any,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    nprocs: int,
    join: bool,
    daemon: bool,
    start_method: str,
    more: Mapping[str, Any],
) -> RanksContext | None:
    __tracebackhide__ = True
    caller = str(frame.f_globals.get("__name__", ""))
    reasons = unshareable_reasons()
    # torchrun's agent, inside a test, looks after its processes itself; and a rank makes processes, no world.
    if _is_rank[0] or caller.startswith("torch.") or reasons:
        if reasons and not _is_rank[0]:
            _tell_once(
                f"dist_testing: {getattr(fn, '__qualname__', fn)}: torch's own spawn runs it, because "
                f"{'; '.join(reasons)}"
            )
        context: RanksContext | None = _original(fn, args, nprocs, join, daemon, start_method, **more)
        return context
    name = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', repr(fn))}"
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
    world = CallWorld(
        functools.partial(_call, fn, args, dict(os.environ)),
        name,
        nprocs,
        call_spec(subject, current_session(), nprocs, None, FORK.name),
        init=False,
        with_store=False,
        show=_show,
    )
    if not join:
        return RanksContext(world, daemon=daemon)
    with world:
        result = world.run()
        world.judge(result, _error_class(result))
    return None


def _call(fn: Callable[..., Any], args: tuple[Any, ...], env: Mapping[str, str]) -> None:
    """Call the function on a rank, in the environment that a spawned process has."""
    _is_rank[0] = True
    # torch's function sets no variable.
    rank = as_spawned_rank(env)
    try:
        fn(rank, *args)
    except SystemExit as error:
        # A process of multiprocessing that leaves so has succeeded.
        if error.code:
            raise


def _error_class(result: CaseResult) -> type[CaseFailedError]:
    if result.verdict.status is Status.FAILED and result.verdict.culprit is not None:
        kind = result.outcomes[result.verdict.culprit].kind
        if kind is Kind.RAISED:
            return RanksRaisedError
        if kind in (Kind.EXITED, Kind.SIGNALLED):
            return RanksExitedError
    return CaseFailedError


def share_memory(value: object) -> None:
    """Move tensors into shared memory, as their pickle for another process does."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and not value.is_sparse:
            value.share_memory_()  # type: ignore[no-untyped-call]  # of torch
    elif isinstance(value, torch.nn.Module):
        value.share_memory()
    elif isinstance(value, list | tuple):
        for inner in value:
            share_memory(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            share_memory(inner)


def _show(event: RankOutput) -> None:
    # As the processes of torch's function print: without the rank.
    print(event.line, flush=True)


def _tell_once(line: str) -> None:
    if line not in _told:
        _told.add(line)
        print(line, file=sys.stderr, flush=True)
