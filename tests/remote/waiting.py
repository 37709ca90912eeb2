"""A case that reports its start and ends on request, both by files. So its worker must run on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import dist_testing

# Long enough to notice a lost worker on a busy machine. Seconds.
_LIMIT_S = 200.0


@pytest.mark.distributed
def test_waits(world: dist_testing.World) -> None:
    """Passes on every worker that is not killed."""
    bell = Path(os.environ["DIST_TESTING_BELL"])
    bell.with_suffix(f".{os.environ['DIST_TESTING_RBE_WORKER']}").touch()
    deadline = time.monotonic() + _LIMIT_S
    while not bell.exists():
        assert time.monotonic() < deadline, f"{bell} was not created"
        time.sleep(0.05)
    world.barrier()
