"""Decorators that run a test under other environment variables, and restore what was there."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

__all__ = ["with_dist_debug_levels", "with_nccl_blocking_wait"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_DEBUG_LEVEL = "TORCH_DISTRIBUTED_DEBUG"


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or remove those with None; afterwards all of them are as they were."""
    before = {name: os.environ.get(name) for name in changes}
    _apply(changes)
    try:
        yield
    finally:
        _apply(before)


def _apply(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def with_nccl_blocking_wait(func: _Function) -> _Function:
    """Run with `TORCH_NCCL_BLOCKING_WAIT` set and `TORCH_NCCL_ASYNC_ERROR_HANDLING` not set."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _environment({"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": None}):
            return func(*args, **kwargs)

    return cast(_Function, wrapper)


def with_dist_debug_levels(levels: Iterable[str]) -> Callable[[_Function], _Function]:
    """Run once under each debug level of torch.distributed, with a barrier after each while there is a default group.

    Afterwards the level is the one before, also when the test fails.

    Args:
        levels: Of "OFF", "INFO", "DETAIL".
    """
    every = list(levels)

    def decorator(func: _Function) -> _Function:
        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            import torch.distributed as dist
            from torch._C._distributed_c10d import set_debug_level_from_env

            result = None
            try:
                for level in every:
                    with _environment({_DEBUG_LEVEL: level}):
                        set_debug_level_from_env()
                        result = func(*args, **kwargs)
                        if dist.is_initialized():
                            dist.barrier()
            finally:
                set_debug_level_from_env()
            return result

        return cast(_Function, wrapper)

    return decorator
