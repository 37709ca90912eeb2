"""Sets a rank's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dist_testing.core.ground.layout import Layout

# Tells torch that another process than rank 0 serves every store, whatever its address.
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


def world_env(env: Mapping[str, str], layout: Layout, store_port: int) -> dict[str, str]:
    """Return `env` with the variables that torchrun sets, except those of `Layout.rank_env`.

    With `store_port` 0 the world has no store, and no MASTER_ADDR.
    """
    result = {**env, **layout.world_env()}
    if store_port:
        result |= {
            "MASTER_ADDR": layout.address,
            "MASTER_PORT": str(store_port),
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        # Under torchrun the runner has it. With it, rank 0 would serve no store at a port that a test has chosen, and
        # all ranks would wait for one. With env://, rank 0 finds the store of the world in its own process.
        result.pop(_AGENT_STORE, None)
    return result


def become(env: Mapping[str, str]) -> None:
    """Make `env` this process's whole environment. Changes only variables that differ; most are inherited."""
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
