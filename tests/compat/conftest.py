"""Fixtures that the tests of this folder share with those of real processes."""

from __future__ import annotations

from tests.process.conftest import starter, starters

__all__ = ["starter", "starters"]
