"""What a case leaves behind in a rank that is kept."""

from __future__ import annotations

import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from dist_testing.rank.state import RankState


def test_every_case_gets_the_random_numbers_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test would depend on those before it, and pass or fail by which of them were selected."""
    # Stands for numpy, which not every target has.
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
