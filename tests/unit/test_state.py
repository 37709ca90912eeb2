"""The state that a case leaves in a pooled rank."""

from __future__ import annotations

import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from dist_testing.rank.state import RankState


def test_every_case_gets_the_same_random_numbers_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a test passes or fails by which tests ran before it."""
    # A replacement for numpy, which not every target has.
    numpy: Any = ModuleType("numpy")
    numpy.drawn = 7
    numpy.random = SimpleNamespace(
        get_state=lambda: numpy.drawn, set_state=lambda drawn: setattr(numpy, "drawn", drawn)
    )
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    state = RankState.now()
    first = (random.random(), torch.rand(1).item(), numpy.drawn)
    numpy.drawn += 1
    state.rewind_generators()
    assert (random.random(), torch.rand(1).item(), numpy.drawn) == first
