"""Runs a call on ranks that are forked from the test's process, as several adapters need it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from dist_testing.core.engine.interrupts import raising_interrupt_again
from dist_testing.core.events.event import RankOutput
from dist_testing.core.ground.case import CaseFailedError
from dist_testing.core.ground.environment import environment
from dist_testing.core.ground.layout import Layout
from dist_testing.core.launch.clean import unshareable_reasons
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.session.session import current_session
from dist_testing.functions.run import CallWorld, call_spec

# The command line names the adapters, so pytest imports them before it calls a hook.
with raising_interrupt_again():
    import torch

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_told: set[str] = set()
# Whether this process is a rank, where the functions of the suite's harness are its own.
_is_rank = [False]


def is_rank() -> bool:
    """Return whether this process is a rank that an adapter has made: what it starts is no world."""
    return _is_rank[0]


def ranks_of(
    call: Callable[[int], Any],
    name: str,
    size: int,
    timeout_s: float | None,
    *,
    subject: str = "",
    with_store: bool = False,
) -> CallWorld:
    """Return a world in which each rank calls `call(rank)`, without a group and without variables of a launcher.

    `timeout_s`: None for the limit of the session. `subject`: what errors name; "" for the name. `with_store`: whether
    the library serves a store at MASTER_ADDR and MASTER_PORT.
    """
    return CallWorld(
        functools.partial(_on_rank, call, dict(os.environ)),
        name,
        size,
        call_spec(subject or name, current_session(), size, None, FORK.name),
        timeout_s=timeout_s,
        init=False,
        with_store=with_store,
        show=_show,
    )


def keeps_own_way(subject: str, own_way: str, unknown: str = "") -> bool:
    """Return whether the suite makes the ranks in its own way, and tell once why.

    `unknown`: what the adapter does not know; "" if only the state of this process can stand against a fork.
    """
    reasons = [unknown] if unknown else unshareable_reasons()
    line = f"dist_testing: {subject}: {own_way}, because {'; '.join(reasons)}"
    if reasons and line not in _told:
        _told.add(line)
        print(line, file=sys.stderr, flush=True)
    return bool(reasons)


def run_on_ranks(call: Callable[[int], Any], name: str, size: int, timeout_s: float | None) -> None:
    """Call `call(rank)` on each rank of a world; see `ranks_of` for the arguments."""
    __tracebackhide__ = True
    with ranks_of(call, name, size, timeout_s) as world:
        world.judge(world.run(), CaseFailedError)


def _on_rank(call: Callable[[int], Any], env: Mapping[str, str]) -> Any:
    """Call with this rank, where torchrun's variables have the values of the caller's environment."""
    _is_rank[0] = True
    rank = int(os.environ["RANK"])
    layout = Layout(1)
    with environment({name: env.get(name) for name in (*layout.rank_env(0), *layout.world_env())}):
        return call(rank)


def _show(event: RankOutput) -> None:
    # As the processes of the own harness print: without the rank.
    print(event.line, flush=True)


def share_memory(value: object) -> None:
    """Move tensors into shared memory, as their pickle for another process does."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and not value.is_sparse:
            value.share_memory_()  # type: ignore[no-untyped-call]  # of torch
    elif isinstance(value, torch.nn.Module):
        value.share_memory()
    elif isinstance(value, list | tuple):
        for inner in value:
            share_memory(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            share_memory(inner)
