"""What the ranks of all models do: join the world, meet once, leave."""

from __future__ import annotations

import os

import torch.distributed as dist


def join(path: str, rank: int, world_size: int) -> None:
    """Join the world that meets at a file."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)


def join_from_environment() -> None:
    """Join the world that a launcher describes by variables."""
    join(os.environ["MEET"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def leave() -> None:
    """Leave the world."""
    dist.destroy_process_group()
