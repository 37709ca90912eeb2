"""Tests of `core.rank.generators`."""

from __future__ import annotations

import random

import numpy.random
import pytest
import torch

from dist_testing.core.rank.generators import seed_generators


def _numbers() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.random_sample()), float(torch.rand(()))


def test_gives_every_test_the_same_numbers() -> None:
    """Also after a test that has seeded otherwise."""
    seed_generators()
    first = _numbers()
    seed_generators()
    assert _numbers() == first
    torch.manual_seed(7)
    seed_generators()
    assert _numbers() == first


def test_seeds_unused_devices_only_if_their_seed_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch notes the seed of a device that is not in use, with a stack, which costs a new rank 4 ms."""
    seed_generators()
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    seed_generators()
    assert seeds == []
    torch.manual_seed(7)
    seed_generators()
    assert seeds == [7, 1234]
