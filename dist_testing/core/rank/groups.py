"""Ends a rank's process groups."""

from __future__ import annotations

from typing import Any

from dist_testing.core.ground.backends import all_declared

# torch's name of the backend of a group that was made without one.
_NOT_NAMED = "undefined"


def destroy_groups() -> None:
    """Destroy the groups of this rank, whose process goes on. Call it when all ranks have passed."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def end_groups() -> None:
    """Destroy those groups of this rank that do not end with its process. Call it when no rank uses them."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return
    # Some backends, NCCL above all, hold things that have to be given back in order.
    in_use = backend_of_groups(dist.distributed_c10d)
    if not all(all_declared(name, lambda backend: backend.ends_with_process) for _, name in in_use):
        dist.destroy_process_group()


def backend_of_groups(c10d: Any) -> list[tuple[Any, str]]:
    """Return each group that the module `c10d` knows, with torch's backend string, such as "cpu:gloo,cuda:nccl"."""
    # There is no public list of groups. A group that was made without a name of a backend is "undefined" here, and its
    # backends are in its configuration.
    configured = c10d._world.pg_backend_config
    groups = list(c10d._world.pg_map.items())
    return [
        (group, str(configured.get(group, backend) if backend == _NOT_NAMED else backend))
        for group, (backend, _) in groups
    ]
