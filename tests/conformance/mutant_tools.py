"""Tools for mutants: three ways to change a method of the group, and what they need."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

import torch

from dist_testing.threaded.group import ThreadedGroup

# Number of a bug to what plants it.
PLANTS: dict[int, Callable[[], None]] = {}
_Function = Callable[..., Any]


def wrap(method: str, mutant: _Function) -> None:
    """Replace a method of the group by `mutant(group, call, *arguments)`, where `call` is the method of this group."""
    original = getattr(ThreadedGroup, method)

    def replaced(self: Any, *given: Any, **more: Any) -> Any:
        return mutant(self, functools.partial(original, self), *given, **more)

    setattr(ThreadedGroup, method, replaced)


def plant(number: int, *methods: str) -> Callable[[_Function], _Function]:
    """Register the bug of this number: the function takes the place of the methods, as `wrap` says.

    Without methods the function itself plants the bug.
    """

    def register(function: _Function) -> _Function:
        def put() -> None:
            for method in methods:
                wrap(method, function)

        PLANTS[number] = put if methods else function
        return function

    return register


def change(number: int, *methods: str) -> Callable[[_Function], _Function]:
    """Register the bug of this number: methods get other arguments.

    The function gets the group and the arguments. It returns the positional arguments to use, or None for the given
    ones; it can also raise, or end the process.
    """

    def register(function: _Function) -> _Function:
        def mutant(group: Any, call: _Function, *given: Any, **more: Any) -> Any:
            changed = function(group, *given, **more)
            return call(*(given if changed is None else changed), **more)

        return plant(number, *methods)(mutant)

    return register


def spoil(number: int, *methods: str) -> Callable[[_Function], _Function]:
    """Register the bug of this number: the function gets the group and the arguments at the end of the first wait."""

    def register(function: _Function) -> _Function:
        def mutant(group: Any, call: _Function, *given: Any, **more: Any) -> Any:
            return after(call(*given, **more), lambda: function(group, *given))

        return plant(number, *methods)(mutant)

    return register


def after(work: Any, action: Callable[[], Any]) -> Any:
    """Return the handle with an action at the end of its first wait."""
    wait = work.wait
    done: list[bool] = []

    def waited(*given: Any) -> Any:
        found = wait(*given)
        if not done:
            done.append(True)
            action()
        return found

    work.wait = waited
    return work


def tensors_of(given: Any) -> list[Any]:
    """Return the tensors of an argument: one, a list, or a list of one list."""
    if isinstance(given, torch.Tensor):
        return [given]
    if given and isinstance(given[0], list):
        return list(given[0])
    return list(given or [])


def global_root(group: Any, root: int) -> int:
    """Return the global rank of a rank in the group, taken for a rank in the group."""
    ranks = group._shared.label.ranks
    return int(ranks[root]) % int(group.size()) if 0 <= root < len(ranks) else root


def copied_options(options: Any, **changed: Any) -> Any:
    """Return a copy of an options object with other values."""
    copy = type(options)()
    for name in ("reduceOp", "rootRank", "timeout", "asyncOp"):
        if hasattr(options, name):
            setattr(copy, name, changed.get(name, getattr(options, name)))
    return copy


def with_global_root(group: Any, options: Any) -> Any:
    """Return options whose root is taken for a rank in the group, although it is a global one; None stays None."""
    return options and copied_options(options, rootRank=global_root(group, options.rootRank))


def die(name: str) -> None:
    """End the process by a signal."""
    os.kill(os.getpid(), getattr(signal, name))
