"""Ends a rank's process groups."""

from __future__ import annotations

from dist_testing.backends import all_declared


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
    if not all(all_declared(name, lambda backend: backend.ends_with_process) for name in backends_in_use()):
        dist.destroy_process_group()


def backends_in_use() -> set[str]:
    """Return torch's backend string of each group of this process, such as "nccl" or "cpu:gloo,cuda:nccl"."""
    import torch.distributed as dist

    # There is no public list of groups.
    return {str(backend) for backend, _ in dist.distributed_c10d._world.pg_map.values()}
