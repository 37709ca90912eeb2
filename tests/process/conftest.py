"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.starter import Starter


@pytest.fixture(scope="session")
def starters() -> Iterator[Starter]:
    """The process that all children are forked from."""
    with Starter() as starter:
        yield starter


@pytest.fixture
def starter(starters: Starter) -> Iterator[Starter]:
    """Starts children; at the end of the test nothing of them may be running."""
    yield starters
    # Bounded by what the library allows itself to clear up after a runner that was killed.
    starters.wait_nothing_left(limit_s=15)
