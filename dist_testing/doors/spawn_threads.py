"""A decorator that runs a function on every rank of a world of threads."""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, overload

from dist_testing.budget import MAX_TIMEOUT_S
from dist_testing.doors.session import current_session
from dist_testing.errors import ThreadsFailedError, UsageError
from dist_testing.outcomes import Status
from dist_testing.rank.reporter import Reporter
from dist_testing.runner.case import Case
from dist_testing.runner.running_world import group_limit_s
from dist_testing.spec import DEFAULT_WORLD_SIZE, MAX_WORLD_SIZE
from dist_testing.threaded import BACKEND

__all__ = ["spawn_threads_and_init_comms", "starts_threads"]

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Part of a function's __dict__, which functools.wraps copies.
_MARK = "__dist_threads__"


@overload
def spawn_threads_and_init_comms(
    func: _Function, timeout: float | None = None, world_size: int = DEFAULT_WORLD_SIZE
) -> _Function: ...


@overload
def spawn_threads_and_init_comms(
    func: None = None, timeout: float | None = None, world_size: int = DEFAULT_WORLD_SIZE
) -> Callable[[_Function], _Function]: ...


def spawn_threads_and_init_comms(
    func: Callable[..., Any] | None = None, timeout: float | None = None, world_size: int = DEFAULT_WORLD_SIZE
) -> Any:
    """Run a method, or any function, on every rank of a world: threads of this process, with a default group.

    What it is called with, all ranks get; what they return is dropped. Usable with and without arguments.

    Args:
        func: The function.
        timeout: Limit for all ranks together, in seconds; None for the target's or the command line's.
        world_size: Ranks.

    Returns:
        The function to call in its place. It raises `ThreadsFailedError`, a `RuntimeError` with the report, if a rank
        failed, and `unittest.SkipTest` if all of them agree on a skip.

    Raises:
        UsageError: If an argument is impossible.
    """
    if type(world_size) is not int or not 1 <= world_size <= MAX_WORLD_SIZE:
        raise _wrong("world_size", world_size, f"a number of ranks from 1 to {MAX_WORLD_SIZE}")
    if timeout is not None and (type(timeout) not in (int, float) or not 0 < timeout <= MAX_TIMEOUT_S):
        raise _wrong("timeout", timeout, f"a number of seconds above 0, up to {MAX_TIMEOUT_S}")
    if func is None:
        return functools.partial(spawn_threads_and_init_comms, timeout=timeout, world_size=world_size)
    if not callable(func):
        raise _wrong("func", func, "a function")
    decorated = func

    @functools.wraps(decorated)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        _run(functools.partial(decorated, *args, **kwargs), _name(decorated), timeout, world_size)

    setattr(wrapper, _MARK, True)
    return wrapper


def starts_threads(function: object, file: Path) -> bool:
    """Whether a test may run something on threads: what it is decorated with says so, or else its file does.

    Args:
        function: The test.
        file: The test file. What a test decorates while it runs shows nowhere else before.
    """
    return hasattr(function, _MARK) or _names_decorator(file)


@functools.lru_cache
def _names_decorator(file: Path) -> bool:
    name = spawn_threads_and_init_comms.__name__
    return file.is_file() and name in file.read_text(encoding="utf-8", errors="replace")


def _run(call: Callable[[], Any], name: str, timeout: float | None, world_size: int) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    store = HashStore()

    def run_rank(rank: int, reporter: Reporter, limit_s: float) -> None:
        reporter.phase("init")
        dist.init_process_group(
            BACKEND,
            rank=rank,
            world_size=world_size,
            store=store,
            timeout=timedelta(seconds=group_limit_s(limit_s)),
        )
        reporter.phase("call")
        call()

    session = current_session()
    case = Case(name, world_size, {}, session.timeout_s if timeout is None else float(timeout), isolation="thread")
    with session.pause_limit():
        result = session.engine.run_here(case, run_rank)
    match result.verdict.status:
        case Status.SKIPPED:
            raise unittest.SkipTest(result.verdict.reason)
        case Status.FAILED:
            raise ThreadsFailedError(session.failure_report(result), result)


def _name(func: Callable[..., Any]) -> str:
    return f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', repr(func))}"


def _wrong(name: str, value: object, expected: str) -> UsageError:
    return UsageError(
        f"@spawn_threads_and_init_comms with {name} = {value!r}; expected {expected}.\n"
        "Its arguments are func, timeout and world_size.\n"
        "Write @spawn_threads_and_init_comms, or @spawn_threads_and_init_comms(world_size=4)."
    )
