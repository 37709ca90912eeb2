"""Tools for mutants: wrapping methods of the group, its handles, and tensors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

from dist_testing.threaded.group import ThreadedGroup


def wrap(method: str, mutant: Callable[..., Any]) -> None:
    """Replace a method of the group by `mutant(original, group, *arguments)`."""
    original = getattr(ThreadedGroup, method)

    def replaced(self: Any, *given: Any, **more: Any) -> Any:
        return mutant(original, self, *given, **more)

    setattr(ThreadedGroup, method, replaced)


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


def handle(result: Any) -> Any:
    """Return the handle of a call that is done."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


def tensors_of(given: Any) -> list[Any]:
    """Return the tensors of an argument: one, a list, or a list of one list."""
    if isinstance(given, torch.Tensor):
        return [given]
    if given and isinstance(given[0], list):
        return list(given[0])
    return list(given or [])


def flat(given: Any) -> Any:
    """Return tensors over the same memory, as if the given ones were contiguous."""
    if isinstance(given, list):
        return [flat(one) for one in given]
    steps = torch.empty(given.shape, device="meta").stride()
    return given.as_strided(given.shape, steps, given.storage_offset())


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


def die(name: str) -> None:
    """End the process by a signal."""
    os.kill(os.getpid(), getattr(signal, name))


PLANTS: dict[int, Callable[[], None]] = {}


def plant(number: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the function that plants the bug of this number."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        PLANTS[number] = function
        return function

    return register


def lose_tail(condition: Callable[[Any, int], bool], block: int) -> None:
    """Make all_reduce lose the elements of the last block that is not full."""

    def mutant(call: Any, group: Any, tensors: Any, *given: Any, **more: Any) -> Any:
        def lose() -> None:
            for tensor in tensors:
                if condition(tensor, group.size()) and tensor.dim() == 1 and tensor.numel() % block:
                    tensor[-(tensor.numel() % block) :].zero_()

        return after(call(group, tensors, *given, **more), lose)

    wrap("allreduce", mutant)


def wrap_all_to_all(mutant: Callable[..., Any]) -> None:
    """Replace both names of the method of all_to_all_single."""
    wrap("alltoall_base", mutant)
    wrap("all_to_all_single", mutant)
