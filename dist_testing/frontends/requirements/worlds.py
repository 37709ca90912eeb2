"""Requirements on the size of the world."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dist_testing.frontends.requirements.decision import check_count, requirement
from dist_testing.skips import TEST_SKIPS

__all__ = [
    "get_required_world_size",
    "requires_world_size",
    "skip_below_world_size",
    "skip_if_odd_worldsize",
    "skip_if_small_worldsize",
    "world_size_in",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# torch's name for it, which harnesses of other people read, too.
_MARK = "_required_world_size"


def world_size_in(environment: Mapping[str, str]) -> int | None:
    """The size of the world that ranks with this environment are in.

    Args:
        environment: `WORLD_SIZE` says it; else the default group, if there is one (ranks that are threads).
    """
    given = environment.get("WORLD_SIZE", "")
    if given.isascii() and given.isdecimal():
        return int(given)
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


def _backend_in(environment: Mapping[str, str]) -> str:
    return environment.get("BACKEND", "").lower()


def skip_below_world_size(minimum: int) -> Callable[[_Function], _Function]:
    """Skip in a world of fewer than `minimum` ranks, unless `BACKEND` is mpi, whose size is mpirun's choice.

    Raises:
        UsageError: If `minimum` is not a number.
    """
    check_count("skip_below_world_size", minimum, "ranks")

    def decide(environment: Mapping[str, str]) -> str | None:
        size = world_size_in(environment)
        if size is None or size >= minimum or _backend_in(environment) == "mpi":
            return None
        return TEST_SKIPS["small_worldsize"].message

    return requirement(decide)


def skip_if_small_worldsize(func: _Function) -> _Function:
    """Skip in a world of one or two ranks, where every rank is a neighbour of every other."""
    decorated: _Function = skip_below_world_size(3)(func)
    return decorated


def skip_if_odd_worldsize(func: _Function) -> _Function:
    """Skip in a world with an odd number of ranks, unless `BACKEND` is mpi."""

    def decide(environment: Mapping[str, str]) -> str | None:
        size = world_size_in(environment)
        if size is None or size % 2 == 0 or _backend_in(environment) == "mpi":
            return None
        return TEST_SKIPS["odd_worldsize"].message

    return requirement(decide)(func)


def requires_world_size(n: int) -> Callable[[_Function], _Function]:
    """Ask for a world of `n` ranks, each with a GPU of its own; skip where there are fewer GPUs.

    The class decides what to make of it: `world_size` may return `get_required_world_size(self, default)`.

    Raises:
        UsageError: If `n` is not a number.
    """
    check_count("requires_world_size", n, "ranks")

    def decorator(func: _Function) -> _Function:
        import torch

        setattr(func, _MARK, n)
        found = torch.cuda.device_count()
        return unittest.skipUnless(found >= n, f"requires {n} GPUs, found {found}")(func)

    return decorator


def get_required_world_size(obj: unittest.TestCase, default: int) -> int:
    """What `requires_world_size` asks for on the test method of `obj`; `default` if nothing does."""
    method = getattr(obj, obj._testMethodName, None)
    size: int = getattr(method, _MARK, default)
    return size
