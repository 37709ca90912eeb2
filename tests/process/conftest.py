"""Fixtures that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attached import Agent
from tests.support.children import Bazel
from tests.support.starter import Starter


@pytest.fixture(scope="session")
def starters() -> Iterator[Starter]:
    """The process from which all children are forked."""
    with Starter() as starter:
        yield starter


@pytest.fixture
def starter(starters: Starter) -> Iterator[Starter]:
    """Starts children; at the end of the test none of their processes may be running."""
    yield starters
    # The library's own limit for the clean-up after a killed runner bounds this wait.
    starters.wait_nothing_left(limit_s=15)


@pytest.fixture
def bazel(starter: Starter, tmp_path: Path) -> Bazel:
    """Runs targets as Bazel does, in the folder of the test."""
    return Bazel(starter, tmp_path)


@pytest.fixture
def agent(starter: Starter, tmp_path: Path) -> Agent:
    """Starts the ranks of an attached world."""
    return Agent(starter, tmp_path)
