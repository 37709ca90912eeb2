"""Distributed PyTorch tests: every rank accounted for, one verdict, nothing left behind.

Two front doors, one engine: `@pytest.mark.distributed` with the `world` fixture, and `MultiProcessTestCase` for
unittest.
"""

from __future__ import annotations

from dist_testing.doors.unittest_case import MultiProcessTestCase
from dist_testing.run_tests import run_tests
from dist_testing.skips import TEST_SKIPS, TestSkip
from dist_testing.world import World

__all__ = ["TEST_SKIPS", "MultiProcessTestCase", "TestSkip", "World", "run_tests"]
