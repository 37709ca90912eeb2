"""Ends a rank's process groups."""

from __future__ import annotations

__all__ = ["destroy_groups", "end_groups"]

# Backends whose groups are connections and threads of the process, and nothing else. To destroy a gloo group takes a
# rank 20 to 40 ms, nearly all of it waiting for the 10 ms ticks of gloo's own loop; the kernel closes the same
# connections in microseconds when the process ends. Others, NCCL above all, hold things that have to be given back in
# order.
_END_WITH_THE_PROCESS = frozenset({"gloo", "fake"})


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
    # There is no public list of groups.
    backends = {backend for backend, _ in dist.distributed_c10d._world.pg_map.values()}
    if not backends <= _END_WITH_THE_PROCESS:
        dist.destroy_process_group()
