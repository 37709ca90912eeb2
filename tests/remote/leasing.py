"""A test that leases one GPU of its worker, and fails if another test on that worker has the same GPU."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.lease import lease_gpus

# Long enough for the other actions of the worker. Seconds.
_LIMIT_S = 200.0
# So long that the actions of one worker meet. Seconds.
_HELD_S = 1.0


def test_leases_a_gpu_alone() -> None:
    """Two tests on one GPU make each other fail."""
    with lease_gpus(1, gpus_present(), limit_s=_LIMIT_S) as lease:
        mark = Path(os.environ["DIST_TESTING_HELD"], f"gpu{lease.gpus[0].minor}")
        # Fails if it exists: another test has the GPU.
        mark.touch(exist_ok=False)
        time.sleep(_HELD_S)
        mark.unlink()
