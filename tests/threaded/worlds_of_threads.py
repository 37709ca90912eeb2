"""Runs test bodies on worlds of threads and checks what every such run has to do."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from dist_testing.core.ground.errors import PeerFailedError
from dist_testing.threaded.thread_world import ThreadOutcome, run_on_threads

# Time limit of a world that should end by itself, far above what it needs on a busy machine. Seconds.
LIMIT_S = 60.0


def default_group() -> Any:
    """Return the calling rank's default group; torch's stubs do not have all of its methods."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def with_group(body: Callable[[int], None], world_size: int) -> Callable[[int], None]:
    """Return a body that makes the default group, runs the given body, and destroys the group if that passes."""
    store = HashStore()

    def run(rank: int) -> None:
        dist.init_process_group("threaded", store=store, rank=rank, world_size=world_size)
        body(rank)
        if dist.is_initialized():
            dist.destroy_process_group()

    return run


def pass_on_threads(body: Callable[[int], None], world_size: int = 4, *, init: bool = True) -> None:
    """Run a body that should pass on every rank; raise the error of a rank that is not a victim, if there is one."""
    outcomes = _run(body, world_size, init=init)
    for outcome in sorted(outcomes, key=lambda outcome: isinstance(outcome.error, PeerFailedError)):
        if outcome.error is not None:
            raise outcome.error


def on_threads(world_size: int = 4, *, init: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on every rank, where it should pass. Its first argument is the rank, and the others are fixtures."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(**fixtures: Any) -> None:
            pass_on_threads(functools.partial(body, **fixtures), world_size, init=init)

        _, *fixtures = inspect.signature(body).parameters.values()
        test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]  # pytest reads it
        return test

    return decorate


def errors_of(body: Callable[[int], None], world_size: int = 4, *, init: bool = True) -> list[BaseException | None]:
    """Run a body that ends by itself on every rank; return the exception of each rank, or None."""
    return [outcome.error for outcome in _run(body, world_size, init=init)]


def _run(body: Callable[[int], None], world_size: int, *, init: bool) -> list[ThreadOutcome]:
    before = set(threading.enumerate())
    outcomes = run_on_threads(with_group(body, world_size) if init else body, world_size, timeout_s=LIMIT_S)
    assert [""] * world_size == [outcome.stack for outcome in outcomes]
    for thread in set(threading.enumerate()) - before:
        # The outcomes are complete; only Python's own end of the threads may still run.
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    return outcomes
