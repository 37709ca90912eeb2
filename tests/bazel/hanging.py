"""A case that hangs, between cases that do not hang."""

from __future__ import annotations

import threading

import pytest

import dist_testing


@pytest.mark.distributed
def test_before(world: dist_testing.World) -> None:
    """Has a result before the next case hangs."""


@pytest.mark.distributed
def test_hangs(world: dist_testing.World) -> None:
    """Ends when its share of Bazel's time is used up."""
    threading.Event().wait()


@pytest.mark.distributed
@pytest.mark.parametrize("number", range(2))
def test_after(world: dist_testing.World, number: int) -> None:
    """Has a result although a case before it hangs."""
