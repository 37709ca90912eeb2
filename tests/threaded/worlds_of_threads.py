"""Runs bodies on threads and says what a test expects of all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from dist_testing.threaded.world import ThreadOutcome, run_on_threads

__all__ = ["LIMIT_S", "default_group", "errors_of", "pass_on_threads"]

# Of a world that should end by itself; far above what it takes on a busy machine. Seconds.
LIMIT_S = 60.0


def default_group() -> Any:
    """The calling rank's; torch's stubs do not know all of its methods."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def pass_on_threads(body: Callable[[int], None], world_size: int = 4, *, init: bool = True) -> None:
    """Run a body that is to pass on every rank; raise the error of a rank that is no victim."""
    outcomes = _run(body, world_size, init=init)
    for outcome in sorted(outcomes, key=lambda outcome: outcome.is_victim):
        if outcome.error is not None:
            raise outcome.error


def errors_of(body: Callable[[int], None], world_size: int = 4, *, init: bool = True) -> list[BaseException | None]:
    """Run a body that ends by itself on every rank, and give what each rank raised."""
    return [outcome.error for outcome in _run(body, world_size, init=init)]


def _run(body: Callable[[int], None], world_size: int, *, init: bool) -> list[ThreadOutcome]:
    before = set(threading.enumerate())
    outcomes = run_on_threads(body, world_size, timeout_s=LIMIT_S, init=init)
    assert [""] * world_size == [outcome.stack for outcome in outcomes]
    for thread in set(threading.enumerate()) - before:
        # They have told all that they had to tell; only Python's own end of a thread is left.
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    return outcomes
