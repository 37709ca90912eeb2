"""Fixtures that the tests of this folder share."""

from __future__ import annotations

from tests.process.conftest import starter, starters

__all__ = ["starter", "starters"]
