"""Cases that are assigned to shards, measured and repeated."""

from __future__ import annotations

import os

import pytest

import dist_testing
from tests.bazel import counted


@pytest.mark.distributed
@pytest.mark.parametrize("number", range(4))
def test_quick(world: dist_testing.World, number: int) -> None:
    """By the file of timings, all four together take as long as the long case."""
    assert counted.on_rank(world.rank)


@pytest.mark.distributed
def test_long(world: dist_testing.World) -> None:
    """Fails in the first of several runs."""
    assert os.environ.get("TEST_RUN_NUMBER") != "1"
