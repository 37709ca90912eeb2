"""A rank's group, and a clean `torch.compile`, for tests of compiled distributed code."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["dynamo_dist_per_rank_init"]

# A second group of the same world must not find what the first one left in its file.
_rendezvous_numbers = itertools.count()


@contextmanager
def dynamo_dist_per_rank_init(
    rank: int, world_size: int, backend: str | None = None, init_pg: bool = True, fake_pg: bool = False
) -> Iterator[None]:
    """On a rank: its accelerator, the default group and a reset `torch.compile`, for a block.

    Args:
        rank: This rank, and the index of its accelerator.
        world_size: Ranks.
        backend: Of the group; None for the accelerator's own.
        init_pg: Whether to make the group, and to destroy it at the end.
        fake_pg: A fake group, and no accelerator.
    """
    import torch
    import torch._dynamo
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    if not fake_pg:
        torch.accelerator.set_device_index(rank)
    if init_pg and fake_pg:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    elif init_pg:
        device = torch.accelerator.current_accelerator()
        backend = backend or dist.get_default_backend_for_device(device.type if device is not None else "cpu")
        if "MASTER_PORT" in os.environ:
            dist.init_process_group(backend, rank=rank, world_size=world_size)
        else:
            # The ranks of a world share their folder for temporary files. Unlike a fixed port, a file in it is never
            # another test's.
            path = os.path.join(tempfile.gettempdir(), f"dynamo-rendezvous-{next(_rendezvous_numbers)}")
            store = FileStore(path, world_size)
            dist.init_process_group(backend, rank=rank, world_size=world_size, store=store)
    _reset()
    try:
        yield
    finally:
        _reset()
        if init_pg:
            dist.destroy_process_group()


def _reset() -> None:
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
