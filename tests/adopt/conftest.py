"""Fixtures that the tests of this folder share."""

from __future__ import annotations

from tests.process.conftest import starter, starters

__all__ = ["starter", "starters"]

# The models of other projects; a suite imports them.
collect_ignore = ["stand_in"]

# Its file `test_multiprocess.py` is a model of JAX's, and has no tests.
collect_ignore = ["stand_in"]
