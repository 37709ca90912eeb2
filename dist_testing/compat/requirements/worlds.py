"""Requirements on the size of the world."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dist_testing.compat.requirements.requirement import requirement
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.skips import TEST_SKIPS

_Function = TypeVar("_Function", bound=Callable[..., Any])

# torch's name for the attribute; other harnesses read it, too.
_MARK = "_required_world_size"


def world_size_in(environment: Mapping[str, str]) -> int | None:
    """Return `WORLD_SIZE`; without it the size of the default group, which ranks that are threads have; else None."""
    given = environment.get("WORLD_SIZE", "")
    if given.isascii() and given.isdecimal():
        return int(given)
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


def _skip_unless(fits: Callable[[int], bool], reason: str) -> Callable[[_Function], _Function]:
    """Skip a test in a world of another size, unless `BACKEND` is mpi: mpirun chooses the size then."""

    def decide(environment: Mapping[str, str]) -> str | None:
        size = world_size_in(environment)
        may_run = size is None or fits(size) or environment.get("BACKEND", "").lower() == "mpi"
        return None if may_run else TEST_SKIPS[reason].message

    return requirement(decide)


def skip_below_world_size(minimum: int) -> Callable[[_Function], _Function]:
    """Skip a test in a world of fewer than `minimum` ranks, unless `BACKEND` is mpi: mpirun chooses the size then."""
    check_count("skip_below_world_size", minimum, "ranks")
    return _skip_unless(lambda size: size >= minimum, "small_worldsize")


def skip_if_small_worldsize(func: _Function) -> _Function:
    """Skip a test in a world of one or two ranks, where every rank is a neighbour of every other.

    With `BACKEND=mpi` it never skips.
    """
    return skip_below_world_size(3)(func)


def skip_if_odd_worldsize(func: _Function) -> _Function:
    """Skip a test in a world with an odd number of ranks, unless `BACKEND` is mpi."""
    return _skip_unless(lambda size: size % 2 == 0, "odd_worldsize")(func)


def requires_world_size(n: int) -> Callable[[_Function], _Function]:
    """Declare that a test needs a world of `n` ranks with a GPU each; skip it on a machine with fewer GPUs.

    It does not set the size: the class's `world_size` may return `get_required_world_size(self, default)`.

    Args:
        n: Ranks that the test needs.

    Raises:
        UsageError: If `n` is not a number from 0.
    """
    check_count("requires_world_size", n, "ranks")

    def decorator(func: _Function) -> _Function:
        import torch

        setattr(func, _MARK, n)
        found = torch.cuda.device_count()
        return unittest.skipUnless(found >= n, f"requires {n} GPUs, found {found}")(func)

    return decorator


def get_required_world_size(obj: unittest.TestCase, default: int) -> int:
    """Return the world size that `requires_world_size` declares for the test method of `obj`; else the default."""
    method = getattr(obj, obj._testMethodName, None)
    size: int = getattr(method, _MARK, default)
    return size


def check_count(decorator: str, count: object, what: str) -> None:
    """Check the argument of a decorator that takes a number of `what`, such as "GPUs".

    Raises:
        UsageError: If `count` is not a number from 0. Raised at the import of the test file.
    """
    if type(count) is not int or count < 0:
        # A function shows that the decorator was used without arguments.
        given = f"the function {count.__qualname__}" if hasattr(count, "__qualname__") else repr(count)
        raise UsageError(
            f"@{decorator}: {given} where the number of {what} belongs.\n"
            "The decorator takes the number in parentheses.\n"
            f"Write @{decorator}(2), for example."
        )
