"""Registers the backend "threaded" with torch when it is imported.

The backend's declaration names this module; see `torch.distributed.Backend.register_backend`.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools

import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions

from dist_testing.core.ground.errors import UsageError
from dist_testing.threaded import BACKEND
from dist_testing.threaded.group import ThreadedGroup
from dist_testing.threaded.meeting import SharedGroup
from dist_testing.threaded.members import current_member
from dist_testing.threaded.operation import GroupLabel

# Numbers for the names of groups, which are unique in this process.
_numbers = itertools.count()


def create_group(options: _DistributedBackendOptions, backend_options: object = None) -> ThreadedGroup:
    """Create one rank's process group object; `torch.distributed.init_process_group` and `new_group` call it.

    Does not wait for the other ranks. The ranks that pass the same store get the same group. Ignores `backend_options`.
    """
    member = current_member()
    if member is None:
        raise UsageError(
            'Backend "threaded" was requested outside of a world of threads.\n'
            "Its ranks are threads that dist_testing starts; the calling thread is not one of them.\n"
            'Use isolation="thread" or MultiThreadedTestCase; for ranks that are processes, use another backend.'
        )
    world, store = member.world, options.store
    rank, size = options.group_rank, options.group_size
    if not 0 <= rank < size:
        raise UsageError(
            f"A group was requested with rank {rank} and world_size {size}.\n"
            "A rank is a number from 0 to world_size - 1.\n"
            f"Pass rank={member.rank} and world_size={world.size} to init_process_group in this world."
        )
    # Only the store identifies a group, because threads of one world may create several groups of the same name. The
    # first rank to arrive names the group; when a rank creates it again, that is a new group.
    turn = store.add(f"dist_testing/rank/{rank}", 1)
    name = store.compare_set(f"dist_testing/group/{turn}", "", f"threads-{next(_numbers)}").decode()
    ranks = list(options.global_ranks_in_group)
    title = f"group {options.group_id!r} of ranks {', '.join(map(str, ranks))}" if ranks else "the default group"
    shared = SharedGroup.joined(world, name, GroupLabel(title, tuple(ranks or range(size))), rank, member)
    return ThreadedGroup(store, rank, shared, world, options.timeout.total_seconds())


# torch's own test code registers a different group under the same name. It comes first, because in some versions of
# torch its import fails if the name is already registered. While a world of ours runs, `isolation.py` changes the name.
with contextlib.suppress(ImportError):
    importlib.import_module("torch.testing._internal.distributed.multi_threaded_pg")
if BACKEND.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu", "cuda"])
