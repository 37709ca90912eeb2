"""A rank's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dist_testing.world import LOOPBACK

__all__ = ["become", "torchrun_env"]


def torchrun_env(size: int, store_port: int) -> dict[str, str]:
    """The variables that torchrun sets, for one node, but for RANK and LOCAL_RANK.

    Args:
        size: Ranks in the world.
        store_port: Port of the world's store; 0 for a world without one, which then has no MASTER_ADDR either.
    """
    env = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
    }
    if store_port:
        env |= {
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(store_port),
            # With env://, rank 0 would bind the port itself; it is taken by the store that serves already. These tell
            # torch so, in torchrun's own words.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
    return env


def become(env: Mapping[str, str]) -> None:
    """Make `env` this process's whole environment. Touches only what differs: most of it is inherited."""
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
