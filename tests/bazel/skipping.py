"""A case that never runs: the GPUs that Bazel is promised do not exist."""

from __future__ import annotations

import pytest

import dist_testing


@pytest.mark.distributed
def test_on_gpus(world: dist_testing.World) -> None:
    """Skipped, or failed if the GPUs were promised."""
