"""Tests whose needs are not met: no rank starts for them, in either front end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import run_cases
from tests.support.starter import Starter

_CASES = """
    import os
    import unittest
    from pathlib import Path
    import pytest
    import dist_testing
    from dist_testing import skip_if_lt_x_gpu, skip_if_odd_worldsize

    NOTES = Path.cwd()

    def note_rank():
        (NOTES / f"started-{os.getpid()}").touch()

    @pytest.fixture(autouse=True)
    def noted_by_fixture(request):
        if "RANK" in os.environ:
            note_rank()

    @pytest.mark.distributed(world_size=2)
    @skip_if_lt_x_gpu(99)
    def test_function(world): ...

    @pytest.mark.distributed(world_size=2)
    @dist_testing.requires_ucc()
    def test_backend(world): ...

    class TestProcesses(dist_testing.MultiProcessTestCase):
        world_size = 3
        setUpRank = staticmethod(note_rank)

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        @skip_if_lt_x_gpu(99)
        def test_processes(self): ...

        @skip_if_odd_worldsize
        def test_odd(self): ...

    class TestPooled(dist_testing.MultiProcContinuousTest):
        world_size = 2
        setUpRank = staticmethod(note_rank)

        @skip_if_lt_x_gpu(99)
        def test_pooled(self): ...

    class TestThreads(dist_testing.MultiThreadedTestCase):
        world_size = 2
        setUpRank = staticmethod(note_rank)

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        @skip_if_lt_x_gpu(99)
        def test_threads(self): ...

    class TestAsManyAsGpus(dist_testing.MultiProcessTestCase):
        world_size = 0

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        @skip_if_lt_x_gpu(2)
        def test_world_of_none(self): ...

    class TestKnownBug(dist_testing.MultiProcessTestCase):
        world_size = 2

        @unittest.expectedFailure
        @skip_if_lt_x_gpu(99)
        def test_known_bug(self):
            self.fail("the bug")
"""


def test_no_rank_is_started_for_a_test_that_cannot_run(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a machine without GPUs starts all ranks of a GPU suite only to skip, as with torch."""
    ended = run_cases(starter, tmp_path, _CASES, "-rs", CUDA_VISIBLE_DEVICES="")
    assert "8 skipped" in ended.log, ended.log
    assert ended.code == 0
    assert not list(tmp_path.glob("started-*"))
    for reason in ("Need at least 99 CUDA devices", "Need at least 2 CUDA devices", "UCC", "odd world size"):
        assert reason in ended.log


@pytest.mark.parametrize("met", ["skip_if_lt_x_gpu(0)", "skip_if_odd_worldsize"])
def test_ranks_are_started_for_a_test_that_can_run(starter: Starter, tmp_path: Path, met: str) -> None:
    """If this fails, the test above would pass with decorators that skip everything."""
    source = _CASES.replace("skip_if_lt_x_gpu(99)", met)
    ended = run_cases(starter, tmp_path, source, "-k", "test_function or test_threads or test_pooled")
    ended.check(passed="test_function test_threads test_pooled")
    assert len(list(tmp_path.glob("started-*"))) == 5


def test_missing_gpus_are_a_failure_where_they_may_not_be_missing(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a GPU job that lost its GPUs is green, or a skip for another reason fails."""
    only = "test_function or test_processes or test_odd or test_pooled or test_known_bug"
    ended = run_cases(starter, tmp_path, _CASES, "--dist-on-missing=fail", "-k", only, CUDA_VISIBLE_DEVICES="")
    # An expected failure must not hide that the test never runs.
    ended.check(failed="test_function test_processes test_pooled test_known_bug", log=["1 skipped"])
    for name in ("test_function", "test_known_bug"):
        assert f"{name}: hardware missing: Need at least 99 CUDA devices" in ended.log
    assert "dist_testing/" not in ended.log, "a traceback through the library"
