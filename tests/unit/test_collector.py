"""The garbage collector during the imports of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dist_testing.core.process import collector


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    collector.resume()


def test_pause_and_resume() -> None:
    """Code that asks sees the collector switched on meanwhile, and its limits afterwards."""
    gc.set_threshold(500, 8, 9)
    collector.pause()
    collector.pause()
    assert gc.isenabled()
    assert gc.get_threshold()[0] == 0
    collector.resume()
    assert gc.get_threshold()[:2] == (500, 8)
    collector.resume()
    assert gc.get_threshold()[:2] == (500, 8)


def test_resume_without_pause() -> None:
    """A run under plain pytest makes no pause; a user's collector that rests goes on resting."""
    gc.set_threshold(0, 8, 9)
    collector.resume()
    assert gc.get_threshold()[0] == 0
    collector.pause()
    collector.resume()
    assert gc.get_threshold()[0] == 0


@pytest.mark.parametrize("chosen", [(300, 8, 9), (0, 1, 9)])
def test_limits_that_a_module_sets_meanwhile_stay(chosen: tuple[int, int, int]) -> None:
    """If this fails, a conftest cannot choose how often garbage is collected."""
    gc.set_threshold(500, 8, 9)
    collector.pause()
    gc.set_threshold(*chosen)
    collector.resume()
    assert gc.get_threshold()[:2] == chosen[:2]
