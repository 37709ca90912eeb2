"""The decorator `spawn_threads_and_init_comms`: runs a function on every rank of a world of threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, overload

from dist_testing.core.engine.running_world import group_limit_s
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, is_timeout
from dist_testing.core.ground.case import Case, CaseBody, CaseFailedError
from dist_testing.core.ground.error_text import name_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE, check_world_size
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.unittest.plain import current_session
from dist_testing.core.unittest.world_case import without_effect
from dist_testing.threaded import BACKEND, THREAD

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_Function = TypeVar("_Function", bound=Callable[..., Any])
_EXAMPLE = "Write @spawn_threads_and_init_comms, or @spawn_threads_and_init_comms(world_size=4)."


class ThreadsFailedError(CaseFailedError, RuntimeError):
    """A function that `spawn_threads_and_init_comms` ran failed on its ranks.

    It is also a `RuntimeError`, because torch's users expect one.
    """


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
    """Run a function or method on every rank of a world of threads of this process, each with a default group.

    All ranks get the arguments of the call; their return values are dropped. The decorator works with and without
    arguments.

    Args:
        func: The function.
        timeout: Limit of all ranks together, in seconds; None for the target's or the command line's.
        world_size: Ranks in the world; default: 4.

    Returns:
        The decorated function. It raises `ThreadsFailedError`, a `RuntimeError` with the report, if a rank fails, and
        `unittest.SkipTest` if all ranks skip for the same reason.

    Raises:
        UsageError: If an argument is impossible.
    """
    check_world_size("@spawn_threads_and_init_comms", world_size, _EXAMPLE)
    if timeout is not None and not is_timeout(timeout):
        raise _wrong("timeout", timeout, f"a number of seconds above 0, up to {MAX_TIMEOUT_S}")
    if func is None:
        return functools.partial(spawn_threads_and_init_comms, timeout=timeout, world_size=world_size)
    if not callable(func):
        raise _wrong("func", func, "a function")
    if kind := without_effect(func):
        raise _wrong("func", func, f"a plain function, not {kind}")
    decorated = func

    @functools.wraps(decorated)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        _run(functools.partial(decorated, *args, **kwargs), name_of(decorated), timeout, world_size)

    # For the pytest front end.
    wrapper.starts_ranks = True  # type: ignore[attr-defined]
    return wrapper


def _run(call: Callable[[], Any], name: str, timeout: float | None, world_size: int) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    from dist_testing.threaded.in_runner import run_here

    store = HashStore()

    def run_rank(rank: int, reporter: Reporter, limit_s: float) -> None:
        reporter.phase("init")
        limit = timedelta(seconds=group_limit_s(limit_s))
        dist.init_process_group(BACKEND, rank=rank, world_size=world_size, store=store, timeout=limit)
        reporter.phase("call")
        call()

    session = current_session()
    timeout_s = session.timeout_s if timeout is None else float(timeout)
    case = Case(
        name,
        world_size,
        CaseBody("unittest"),
        timeout_s,
        isolation=THREAD.name,
        limit_switch="the decorator's timeout",
    )
    with session.pause_limit():
        result = run_here(session.engine, case, run_rank)
    session.judge(result, ThreadsFailedError)


def _wrong(name: str, value: object, expected: str) -> UsageError:
    return UsageError(
        f"@spawn_threads_and_init_comms with {name} = {value!r}; expected {expected}.\n"
        "Its arguments are func, timeout and world_size.\n"
        f"{_EXAMPLE}"
    )
