"""A case that runs nowhere: the GPUs that Bazel is told of do not exist."""

from __future__ import annotations

import pytest

import dist_testing


@pytest.mark.distributed
def test_on_gpus(world: dist_testing.World) -> None:
    """Skipped, or a failure where the GPUs were promised."""
