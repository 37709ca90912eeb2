"""The library as users run it: marked tests in a pytest session."""

from __future__ import annotations

import pytest

from contestants.trivial import run_trivial
from contestants.turns import order
from dist_testing import World

pytestmark = pytest.mark.distributed(world_size=order().world_size)


def test_trivial(world: World, case: str) -> None:
    """One collective."""
    run_trivial(case, world.rank)
