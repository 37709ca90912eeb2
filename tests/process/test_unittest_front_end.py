"""The unittest classes, seen from outside: one file, run in every way in which users run unittest files."""

from __future__ import annotations

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

    class TestNumericText(dist_testing.MultiProcessTestCase):
        world_size = "2"

        def test_size(self):
            self.assertEqual(os.environ["WORLD_SIZE"], "2")

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


@pytest.mark.parametrize(
    ("ending", "code"),
    [("dist_testing.run_tests()", pytest.ExitCode.TESTS_FAILED), ("unittest.main()", 1)],
)
def test_as_a_program(starter: Starter, tmp_path: Path, ending: str, code: int) -> None:
    """If this fails, `python test_cases.py`, with one of the usual endings, gives wrong outcomes."""
    file = write_file(tmp_path, "test_cases.py", _CASES)
    file.write_text(f'{file.read_text()}\n\nif __name__ == "__main__":\n    {ending}\n')
    child = starter.start(["test_cases.py"], tmp_path, fresh=True)
    assert child.wait() == code, child.log
    assert (_COUNTS if "unittest" in ending else "5 failed, 6 passed, 2 skipped, 1 xfailed") in child.log
    _assert_right(tmp_path, child.log)


@pytest.mark.parametrize("ending", ["dist_testing.run_tests()", "unittest.main()"])
def test_program_runs_the_tests_that_it_names(starter: Starter, tmp_path: Path, ending: str) -> None:
    """If this fails, `python test_cases.py Class.test_method` runs other tests."""
    file = write_file(tmp_path, "test_cases.py", _CASES)
    file.write_text(f'{file.read_text()}\n\nif __name__ == "__main__":\n    {ending}\n')
    child = starter.start(["test_cases.py", "TestNumericText.test_size", "TestRanks.test_pass"], tmp_path)
    assert child.wait() == 0, child.log
    assert "2 passed" in child.log or "Ran 2 tests" in child.log


def test_errors_around_the_test_name_their_origin(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an error around a test leaves a rank, or does not name the runner or the rank as its origin."""
    ended = run_cases(
        starter,
        tmp_path,
        """
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

        class TestAfterwards(Base):
            pass

        # The base class itself must not be collected.
        del Base
        """,
    )
    lines = [line for line in ended.log.splitlines() if line.startswith(("PASSED", "FAILED", "SKIPPED"))]
    outcomes = {line.split("::")[1]: line.split(" ")[0] for line in lines if "::" in line}
    assert [name for name, outcome in outcomes.items() if outcome == "PASSED"] == ["TestAfterwards"], ended.log
    assert "after asking for ranks" in ended.log
    assert "1 skipped" in ended.log
    for said in (
        "ValueError: planted in setUp",
        "ValueError: planted before",
        "ValueError: planted in tearDown",
        "rank 1 raised ValueError: planted in setUpRank in setup",
        "rank 1 raised ValueError: planted in tearDownRank in teardown",
        "planted in cleanup",
    ):
        assert said in ended.log, said


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("world_size = 0", "world_size = 0; expected a number of ranks from 1 to 1024"),
        ("world_size = -1", "world_size = -1; expected a number of ranks from 1 to 1024"),
        ("world_size = 'two'", "world_size = 'two'"),
        ("isolation = 'jail'", "isolation = 'jail'"),
        ("case_timeout_s = -1", "case_timeout_s = -1"),
        ("setUp = lambda self: (self._spawn_processes(), self._spawn_processes())", "was called twice"),
    ],
)
def test_bad_attribute_is_a_clear_error(starter: Starter, tmp_path: Path, attribute: str, said: str) -> None:
    """If this fails, a wrong attribute runs something else, or shows the library's internals."""
    ended = run_cases(
        starter,
        tmp_path,
        f"""
        import dist_testing

        class TestBad(dist_testing.MultiProcessTestCase):
            {attribute}

            def test_it(self): ...
        """,
    )
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert said in ended.log
    assert "dist_testing/" not in ended.log, "a traceback through the library"


def test_sub_test_is_named(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the report does not name the failed sub-test, or the others do not run."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import dist_testing

        class TestSub(dist_testing.MultiProcessTestCase):
            world_size = 2

            def test_it(self):
                for number in range(4):
                    with self.subTest(number=number):
                        print(f"number {number}")
                        self.assertFalse(number in (1, 2) and self.rank == 1)
        """,
    )
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    assert "(number=1)" in ended.log
    assert "(number=2)" in ended.log
    assert "number 3" in ended.log


def test_failing_import_is_reported_once(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a file that cannot be imported is reported once per rank."""
    ended = run_cases(starter, tmp_path, "import dist_testing\nimport nothing_of_this_name\n")
    assert ended.code == pytest.ExitCode.INTERRUPTED
    assert "nothing_of_this_name" in ended.log


def test_ranks_see_the_runner_as_it_is_at_their_start(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks miss what setUp did before it started them, unlike a spawned process."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import os
        import tempfile
        import dist_testing

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
        """,
    )
    assert ended.code == 0, ended.log


def test_plain_unittest_leaves_nothing_when_it_is_killed_by_a_test(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a killed interpreter without pytest leaves ranks or folders behind."""
    write_file(
        tmp_path,
        "test_cases.py",
        """
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
        """,
    )
    child = starter.start(["-m", "unittest", "test_cases"], tmp_path)
    assert child.wait() == -9
    starter.wait_nothing_left(15)
    left = [path.name for path in (tmp_path / "tmp").iterdir() if path.is_dir()]
    assert not left, "the run's folder is gone; an empty rendezvous file may stay"
