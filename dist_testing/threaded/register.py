"""Makes the backend "threaded" known to torch, on import."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions

from dist_testing.errors import UsageError
from dist_testing.threaded import BACKEND
from dist_testing.threaded.group import ThreadedGroup
from dist_testing.threaded.meeting import SharedGroup
from dist_testing.threaded.members import current_member

__all__ = ["create_group", "register"]

# The name is torch's too, for a group of its own. Whoever registers first is asked in worlds of its own only: see
# `isolation.py`, which puts `create_group` there while a world of ours runs.
_TORCH_MODULE = "torch.testing._internal.distributed.multi_threaded_pg"


def create_group(options: _DistributedBackendOptions, backend_options: object = None) -> ThreadedGroup:
    """One rank's side of a group, as `init_process_group` and `new_group` ask for it. Does not wait for other ranks.

    Raises:
        UsageError: If the calling thread is no rank of a world of threads.
    """
    member = current_member()
    if member is None:
        raise UsageError(
            'Backend "threaded" was asked for outside of a world of threads.\n'
            "Its ranks are threads of one process; this thread is none of them, so there is nobody to talk to.\n"
            'Use isolation="thread" or MultiThreadedTestCase; for ranks that are processes, use another backend.'
        )
    world, store = member.world, options.store
    rank, size = options.group_rank, options.group_size
    if not 0 <= rank < size:
        raise UsageError(
            f"A group was asked for with rank {rank} and world_size {size}.\n"
            "Ranks count from 0, and there are as many as world_size says.\n"
            f"Give init_process_group rank={member.rank} and world_size={world.size} in this world."
        )
    # The store is what the ranks of a group have in common, and nothing else is: threads of one world may make several
    # groups of the same name. The first of them to come names the group; each further round makes a new one.
    turn = store.add(f"dist_testing/rank/{rank}", 1)
    name = store.compare_set(f"dist_testing/group/{turn}", "", world.new_name()).decode()
    ranks = list(options.global_ranks_in_group)
    label = f"group {options.group_id!r} of ranks {', '.join(map(str, ranks))}" if ranks else "the default group"
    shared = SharedGroup.of(world, name, label, ranks or range(size))
    shared.join(rank, member)
    return ThreadedGroup(store, rank, shared, world, options.timeout.total_seconds())


def register() -> None:
    """Register the name with torch, unless torch's own module has it or can have it."""
    # First, because it refuses to come second in some versions of torch.
    with contextlib.suppress(ImportError):
        importlib.import_module(_TORCH_MODULE)
    if BACKEND.upper() not in _plugins():
        dist.Backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu", "cuda"])


def _plugins() -> dict[str, Any]:
    plugins: dict[str, Any] = dist.Backend._plugins
    return plugins


register()
