"""Decides requirements: in the runner before ranks start where possible, else on the rank.

A decorated function carries its requirements, also through other decorators that use `functools.wraps`. The runner
calls `unmet_requirement` before it starts ranks. The function decides again when it is called, in case that something
else than the runner calls it.
"""

from __future__ import annotations

import functools
import os
import unittest
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.skips import REQUIRED, REQUIREMENTS, Decide

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_Function = TypeVar("_Function", bound=Callable[..., Any])


def requirement(
    decide: Decide, *, on_rank_only: bool = False, gpus: Callable[[int], int] | None = None
) -> Callable[[_Function], _Function]:
    """Return a decorator that skips a test for the reason that `decide` gives, on a rank as `handle_test_skip` says.

    `on_rank_only`: whether to decide only on ranks, because the decision imports packages or initialises CUDA, after
    which the runner cannot be forked. For a class it is decided at once. `gpus` returns the number of GPUs that the
    test needs in a world of a size; None if the requirement is about something else.
    """

    def decorator(function: _Function) -> _Function:
        if isinstance(function, type):
            if on_rank_only:
                reason = decide(os.environ)
                return unittest.skipIf(reason is not None, reason or "")(function)
            raise UsageError(
                f"{function.__qualname__} is a class; this decorator is for functions and test methods.\n"
                "It decides for each test just before that test runs.\n"
                "Decorate the methods, or use a decorator that decides once, such as requires_nccl()."
            )

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if (reason := decide(os.environ)) is None:
                return function(*args, **kwargs)
            if not handle_test_skip(args, reason):
                raise unittest.SkipTest(reason)
            return None

        if not on_rank_only:
            # The outermost decorator decides first, as in a call of the function.
            setattr(wrapper, REQUIREMENTS, (decide, *getattr(function, REQUIREMENTS, ())))
        if gpus is not None:
            note_required(wrapper, gpus=gpus)
        return cast(_Function, wrapper)

    return decorator


def note_required(test: Any, *, gpus: Callable[[int], int] = lambda size: 0, backend: str = "") -> None:
    """Note on a function or a class what one of its requirements is about, also if it is met."""
    setattr(test, REQUIRED, ((gpus, backend), *getattr(test, REQUIRED, ())))


def handle_test_skip(args: Sequence[object], reason: str) -> bool:
    """Let the instance of a test, the first of `args`, handle its own skip by its method `_handle_test_skip(reason)`.

    Return whether it has the method, as torch's simulations of a world in one process have.
    """
    handle = getattr(args[0], "_handle_test_skip", None) if args else None
    if handle is None:
        return False
    handle(reason)
    return True
