"""Makes a rank look as a process that `multiprocessing` has spawned, for suites that set its variables themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dist_testing.core.ground.layout import Layout


def as_spawned_rank(env: Mapping[str, str]) -> int:
    """Give torchrun's variables the values that they have in the caller's environment, and return this rank."""
    rank = int(os.environ["RANK"])
    layout = Layout(1, 1)
    for variable in (*layout.rank_env(0), *layout.world_env()):
        if variable in env:
            os.environ[variable] = env[variable]
        else:
            os.environ.pop(variable, None)
    return rank
