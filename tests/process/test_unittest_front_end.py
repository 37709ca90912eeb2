"""The unittest classes, seen from outside: one file, run in every way in which users run unittest files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.children import assert_no_folder_left, run_cases, run_pytest, write_file
from tests.support.starter import Starter

_CASES = """
    import os
    import sys
    import tempfile
    import threading
    import unittest
    from pathlib import Path
    import torch
    import torch.distributed as dist
    import dist_testing

    NOTES = Path.cwd()

    class TestRanks(dist_testing.MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self.assertEqual(self.rank, self.MAIN_PROCESS_RANK)
            self._spawn_processes()

        def tearDown(self):
            (NOTES / f"torn-down-in-runner{self.rank}").touch()
            super().tearDown()

        def setUpRank(self):
            self.value = self.rank

        def tearDownRank(self):
            (NOTES / f"torn-down-{self.rank}").touch()

        def test_pass(self):
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
            total = torch.ones(1)
            dist.all_reduce(total)
            self.assertEqual(total.item(), 2)
            self.assertEqual(self.value, self.rank)
            self.assertEqual(self.is_master, self.rank == 0)
            self.addCleanup((NOTES / f"cleaned-up-{self.rank}").touch)

        def test_fail(self):
            self.assertNotEqual(self.rank, 1, "planted")

        def test_error(self):
            if self.rank == 1:
                raise ValueError("planted")

        def test_skip(self):
            self.skipTest("planted reason")

        @unittest.skip("by decorator")
        def test_skip_by_decorator(self):
            os.abort()

        def test_subtests(self):
            for number in range(3):
                with self.subTest(number=number):
                    self.assertNotEqual((number, self.rank), (1, 1))

        @unittest.expectedFailure
        def test_expected_failure(self):
            self.assertEqual(self.rank, 0)

        @unittest.expectedFailure
        def test_unexpected_success(self): ...

        def test_crash(self):
            if self.rank == 1:
                os._exit(3)
            threading.Event().wait()

    class TestWithoutSpawn(dist_testing.MultiProcessTestCase):
        world_size = 3

        def test_asks_for_ranks_by_itself(self):
            self.assertIn(self.rank, range(3))
            Path(self.file_name).exists()

    class TestDefault(dist_testing.MultiProcessTestCase):
        def test_size(self):
            self.assertEqual(os.environ["WORLD_SIZE"], "4")

    class TestPool(dist_testing.MultiProcessTestCase):
        world_size = 2
        isolation = "pool"

        def test_first(self):
            (NOTES / f"pool-{self.rank}-{os.getpid()}").touch()

        def test_second(self):
            self.assertTrue((NOTES / f"pool-{self.rank}-{os.getpid()}").exists())
"""
_FAILED = ("test_fail", "test_error", "test_subtests", "test_crash")
_COUNTS = "FAILED (failures=4, skipped=2, expected failures=1, unexpected successes=1)"


def _assert_right(folder: Path, log: str) -> None:
    """Check the results that are the same in all ways to run the file."""
    assert_no_folder_left(folder)
    for said in (
        "rank 1 raised AssertionError: 1 == 1 : planted",
        "rank 1 raised ValueError: planted",
        "(number=1)",
        "rank 1 exited with code 3",
    ):
        assert said in log, log
    notes = {path.name for path in folder.iterdir()}
    assert {f"{what}-{rank}" for what in ("cleaned-up", "torn-down") for rank in range(2)} <= notes
    assert {name for name in notes if "in-runner" in name} == {"torn-down-in-runner-1"}


def test_under_pytest(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the usual way to run such a file gives wrong outcomes."""
    write_file(tmp_path, "test_cases.py", _CASES)
    ended = run_pytest(starter, tmp_path, "-rA", "test_cases.py")
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    outcomes = ended.outcomes()
    assert outcomes.pop("test_unexpected_success") == "FAILED"
    assert {name for name, outcome in outcomes.items() if outcome == "FAILED"} == set(_FAILED), ended.log
    assert outcomes["test_expected_failure"] == "XFAIL"
    assert {name for name, outcome in outcomes.items() if outcome == "PASSED"} == {
        *("test_pass", "test_asks_for_ranks_by_itself", "test_size", "test_first", "test_second")
    }
    assert "2 skipped" in ended.log
    _assert_right(tmp_path, ended.log)


def test_under_unittest(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `python -m unittest`, without pytest, gives wrong outcomes or no report."""
    write_file(tmp_path, "test_cases.py", _CASES)
    child = starter.start(["-m", "unittest", "-v", "test_cases"], tmp_path, fresh=True)
    assert child.wait() == 1, child.log
    assert _COUNTS in child.log
    assert "test_skip (test_cases.TestRanks.test_skip) ... skipped 'planted reason'" in child.log
    _assert_right(tmp_path, child.log)


_AROUND = """
    import os
    import tempfile
    import unittest
    import dist_testing

    class Base(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_it(self): ...

    class TestSetUpAfterSpawn(Base):
        def setUp(self):
            super().setUp()
            self._spawn_processes()
            raise ValueError("planted in setUp")

    class TestSetUpBeforeSpawn(Base):
        def setUp(self):
            raise ValueError("planted before")

    class TestTearDown(Base):
        def tearDown(self):
            raise ValueError("planted in tearDown")

    class TestSetUpRank(Base):
        def setUpRank(self):
            if self.rank == 1:
                raise ValueError("planted in setUpRank")

    class TestTearDownRank(Base):
        def tearDownRank(self):
            if self.rank == 1:
                raise ValueError("planted in tearDownRank")

    class TestCleanup(Base):
        def test_it(self):
            self.addCleanup(int, "planted in cleanup")

    class TestSkipInSetUp(Base):
        def setUp(self):
            super().setUp()
            self._spawn_processes()
            self.skipTest("after asking for ranks")

    class TestMoment(dist_testing.MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            os.environ["OF_THE_MOMENT"] = "set"
            self.addCleanup(os.environ.pop, "OF_THE_MOMENT")
            self.folder = tempfile.mkdtemp()
            self.addCleanup(os.chdir, os.getcwd())
            self.addCleanup(os.umask, os.umask(0o027))
            os.chdir(self.folder)
            self._spawn_processes()

        def test_environment(self):
            assert os.environ["OF_THE_MOMENT"] == "set"
            assert os.environ["RANK"] == str(self.rank)
            assert os.path.basename(os.getcwd()).startswith("tmp")
            assert os.umask(0) == 0o027

    class TestZero(Base):
        world_size = 0

    class TestText(Base):
        world_size = "two"

    class TestJail(Base):
        isolation = "jail"

    class TestTime(Base):
        case_timeout_s = -1

    class TestStrict(Base):
        strict_collectives = 1

    class TestTwice(Base):
        setUp = lambda self: (self._spawn_processes(), self._spawn_processes())

    # The base class itself must not be collected.
    del Base
"""


def test_errors_around_the_test_name_their_origin(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an error around a test leaves a rank, or a wrong attribute runs something else.

    TestMoment passes if its ranks see what setUp did before it started them, as a spawned process does.
    """
    ended = run_cases(starter, tmp_path, _AROUND)
    lines = [line for line in ended.log.splitlines() if line.startswith(("PASSED", "FAILED"))]
    outcomes = {line.split("::")[1]: line.split(" ")[0] for line in lines}
    assert [name for name, outcome in outcomes.items() if outcome == "PASSED"] == ["TestMoment"], ended.log
    assert len(outcomes) == 13
    reports = re.split(r"^_{3,} ", ended.log.partition("= FAILURES =")[2], flags=re.MULTILINE)
    for name, said in {
        "TestSetUpAfterSpawn": "ValueError: planted in setUp",
        "TestSetUpBeforeSpawn": "ValueError: planted before",
        "TestTearDown": "ValueError: planted in tearDown",
        "TestSetUpRank": "rank 1 raised ValueError: planted in setUpRank in setup",
        "TestTearDownRank": "rank 1 raised ValueError: planted in tearDownRank in teardown",
        "TestCleanup": "planted in cleanup",
        "TestZero": "world_size = 0; expected a number of ranks from 1 to 1024",
        "TestText": "world_size = 'two'",
        "TestJail": "isolation = 'jail'",
        "TestTime": "case_timeout_s = -1",
        "TestStrict": "strict_collectives = 1; expected True, False or None",
        "TestTwice": "was called twice",
    }.items():
        (report,) = (report for report in reports if report.startswith(f"{name}."))
        assert said in report
        assert "dist_testing/" not in report, "a traceback through the library"
    assert "after asking for ranks" in ended.log
    assert "1 skipped" in ended.log


def test_plain_unittest_leaves_nothing_when_it_is_killed_by_a_test(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a killed interpreter without pytest leaves ranks or folders behind."""
    source = """
        import os
        import threading
        import dist_testing

        class TestKill(dist_testing.MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                self._spawn_processes()
                os.kill(os.getpid(), 9)

            def test_never_seen(self):
                threading.Event().wait()
    """
    write_file(tmp_path, "test_cases.py", source)
    child = starter.start(["-m", "unittest", "test_cases"], tmp_path)
    assert child.wait() == -9
    starter.wait_nothing_left(15)
    left = [path.name for path in (tmp_path / "tmp").iterdir() if path.is_dir()]
    assert not left, "the run's folder is gone; an empty rendezvous file may stay"
