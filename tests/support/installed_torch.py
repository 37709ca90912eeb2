"""Lines that the installed release of torch prints by itself into the output of a rank."""

from __future__ import annotations

import importlib.metadata

# The package tells its version without being loaded.
_PRINTS_CONNECTIONS = importlib.metadata.version("torch").startswith("2.10.")


def said_by_gloo(rank: int, world_size: int) -> str:
    """Return the line that gloo prints when the default group has connected; "" if it prints none."""
    if not _PRINTS_CONNECTIONS:
        return ""
    peers = world_size - 1
    return (
        f"[Gloo] Rank {rank} is connected to {peers} peer ranks. Expected number of connected peer ranks is : {peers}\n"
    )
