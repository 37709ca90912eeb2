"""The hooks that unittest classes override and tests read, each with real ranks."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import run_cases
from tests.support.starter import Starter


def _failures(log: str) -> dict[str, str]:
    """Return the class of each failed test, to the first line of its failure in the final summary."""
    lines = [line for line in log.splitlines() if line.startswith("FAILED ") and "::" in line]
    return {line.split("::")[1]: line.partition(" - ")[2] for line in lines}


def test_ranks_go_through_run(starter: Starter, tmp_path: Path) -> None:
    """If this fails, classes that make their group in `_run`, or skip there, break, or code after the test is lost."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import os
        import sys
        from pathlib import Path

        import torch
        import torch.distributed as dist

        import dist_testing

        NOTES = Path.cwd()

        class WithGroup(dist_testing.MultiProcessTestCase):
            world_size = "2"
            fake_pg = True
            __test__ = False

            @property
            def destroy_pg_upon_exit(self):
                return False

            @classmethod
            def _run(cls, rank, test_name, file_name, pipe, **kwargs):
                assert kwargs == {"fake_pg": True}
                self = cls(test_name)
                self.rank = rank
                self.file_name = file_name
                dist.init_process_group(
                    "gloo", init_method=f"file://{file_name}", rank=rank, world_size=int(self.world_size)
                )
                self.run_test(test_name, pipe)
                dist.barrier()
                dist.destroy_process_group()
                (NOTES / f"after-{test_name}-{rank}").touch()
                sys.exit(0)

        class TestGroup(WithGroup):
            __test__ = True

            def test_pass(self):
                total = torch.ones(1)
                dist.all_reduce(total)
                self.assertEqual(total, 2)

            def test_skip(self):
                self.skipTest("planted reason")

            def test_fail(self):
                self.assertNotEqual(self.rank, 1, "planted")

        class TestSkipBefore(dist_testing.MultiProcessTestCase):
            @classmethod
            def _run(cls, rank, test_name, file_name, pipe, **kwargs):
                sys.exit(dist_testing.TEST_SKIPS["multi-gpu-4"].exit_code)

            def test_never(self):
                raise ValueError

        class TestRaisesBefore(dist_testing.MultiProcessTestCase):
            @classmethod
            def _run(cls, rank, test_name, file_name, pipe, **kwargs):
                raise ValueError("planted before")

            def test_never(self):
                pass

        class TestForgetsTest(dist_testing.MultiProcessTestCase):
            @classmethod
            def _run(cls, rank, test_name, file_name, pipe, **kwargs):
                pass

            def test_never(self):
                pass

        class TestForgetsRank(dist_testing.MultiProcessTestCase):
            @classmethod
            def _run(cls, rank, test_name, file_name, pipe, **kwargs):
                cls(test_name).run_test(test_name, pipe)

            def test_never(self):
                pass

        class TestOwnRunTest(dist_testing.MultiProcessTestCase):
            def run_test(self, test_name, pipe):
                (NOTES / f"own-{self.rank}").touch()

            def test_never(self):
                raise ValueError
        """,
    )
    failures = _failures(ended.log)
    assert set(failures) == {"TestGroup", "TestRaisesBefore", "TestForgetsTest", "TestForgetsRank"}, ended.log
    outcomes = ended.outcomes()
    assert (outcomes["test_pass"], outcomes["test_fail"]) == ("PASSED", "FAILED")
    for said in (
        "planted reason",
        "Need at least 4 CUDA devices",
        "ValueError: planted before",
        "_run has returned, and test_never has not run",
        "run_test was called on an instance that has no rank",
    ):
        assert said in ended.log, said
    notes = {path.name for path in tmp_path.iterdir()}
    assert {name for name in notes if name.startswith("after-")} == {"after-test_pass-0", "after-test_pass-1"}
    assert {f"own-{rank}" for rank in range(4)} <= notes


def test_ways_to_start_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test whose ranks never started passes."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import multiprocessing
        import sys

        import torch

        import dist_testing

        MARK = "set by the module that the runner has loaded"
        IS_FRESH = "pytest" not in getattr(sys, "orig_argv", [""])[1:3]

        class Base(dist_testing.MultiProcessTestCase):
            world_size = 2

            def test_it(self):
                self.assertEqual(MARK[:3], "set")

        class TestFork(Base):
            isolation = "spawn"

            def setUp(self):
                super().setUp()
                self._fork_processes()

            def test_it(self):
                assert dist_testing.MultiProcessTestCase is sys.modules["dist_testing"].MultiProcessTestCase

        class TestProcessClass(Base):
            def setUp(self):
                super().setUp()
                self._start_processes(torch.multiprocessing.get_context("spawn").Process)

        class TestForkClass(Base):
            def setUp(self):
                super().setUp()
                self._start_processes(multiprocessing.get_context("fork").Process)

        class TestOtherCallable(Base):
            def setUp(self):
                super().setUp()
                self._start_processes(lambda *args, **kwargs: None)

        class TestNoRanks(Base):
            def _spawn_processes(self):
                pass

        class TestRunsHere(Base):
            def _spawn_processes(self):
                pass

            def join_or_run(self, fn):
                return fn

            def test_it(self):
                self.assertEqual(self.rank, self.MAIN_PROCESS_RANK)

        class TestCoroutine(Base):
            async def test_it(self):
                raise ValueError

        class TestGenerator(Base):
            def test_it(self):
                yield

        class TestThread(Base):
            isolation = "thread"

        del Base
        """,
    )
    failures = _failures(ended.log)
    assert set(failures) == {"TestOtherCallable", "TestNoRanks", "TestCoroutine", "TestGenerator", "TestThread"}
    for said in (
        "not a process class of multiprocessing",
        "no ranks were started, so the test has not run",
        "the test method is an async def",
        "the test method is a generator",
        "Derive the class from MultiThreadedTestCase",
    ):
        assert said in ended.log, said
    assert "dist_testing/" not in ended.log, "a traceback through the library"


def test_each_test_has_a_fresh_process_with_the_same_random_numbers(starter: Starter, tmp_path: Path) -> None:
    """If this fails, one test's state reaches the next, or the ranks of a test have different random numbers."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import os
        import random
        import sys
        import tempfile
        from pathlib import Path

        import torch
        import torch.distributed as dist

        import dist_testing

        class TestFresh(dist_testing.MultiProcessTestCase):
            world_size = 2

            def _leave_traces(self):
                self.assertFalse(dist.is_initialized())
                self.assertNotIn("wave", sys.modules)
                self.assertNotIn("LEFT_BEHIND", os.environ)
                numbers = (random.random(), torch.rand(1).item())
                Path(f"numbers-{self._testMethodName}-{self.rank}").write_text(repr(numbers))
                import wave
                os.environ["LEFT_BEHIND"] = "yes"
                dist.init_process_group(
                    "gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=self.world_size
                )

            def test_one(self):
                self._leave_traces()

            def test_other(self):
                self._leave_traces()
                if hasattr(self, "enterContext"):
                    self.enterContext(tempfile.TemporaryDirectory(dir=Path.cwd()))
        """,
    )
    assert ended.code == 0, ended.log
    numbers = [path.read_text() for path in tmp_path.glob("numbers-*")]
    assert len(numbers) == 4
    assert len(set(numbers)) == 1
    assert not list(tmp_path.glob("tmp?*")), "a context that was entered on a rank was not closed"


def test_pooled_ranks_end_the_group_of_a_test(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a file that never destroys its group, as most, works on fresh ranks but not in a pool."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import os
        from pathlib import Path

        import torch.distributed as dist

        import dist_testing

        class TestPooled(dist_testing.MultiProcessTestCase):
            isolation = "pool"
            world_size = 2

            def _use_group(self):
                Path(f"pid-{os.getpid()}").touch()
                dist.init_process_group(
                    "gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=self.world_size
                )
                dist.barrier()

            def test_one(self):
                self._use_group()

            def test_other(self):
                self._use_group()

        class TestKeeps(TestPooled):
            destroy_pg_upon_exit = False

            def test_one(self):
                self.assertFalse(dist.is_initialized())

            def test_other(self):
                self._use_group()
        """,
    )
    outcomes = [line for line in ended.log.splitlines() if line.startswith(("PASSED", "FAILED"))]
    assert sorted(line.split(" - ")[0] for line in outcomes) == [
        "FAILED test_cases.py::TestKeeps::test_other",
        "PASSED test_cases.py::TestKeeps::test_one",
        "PASSED test_cases.py::TestPooled::test_one",
        "PASSED test_cases.py::TestPooled::test_other",
    ], ended.log
    assert "process groups, from 0 to 1" in ended.log
    assert len(list(tmp_path.glob("pid-*"))) == 4


def test_expected_failure_is_not_a_crash(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a crash, or a failure around the method, counts as the expected failure."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import os
        import unittest

        import dist_testing

        class TestExpected(dist_testing.MultiProcessTestCase):
            world_size = 2

            @unittest.expectedFailure
            def test_fails(self):
                self.assertEqual(self.rank, 0)

            @unittest.expectedFailure
            def test_dies(self):
                os.abort()

            @unittest.expectedFailure
            def test_cleanup_fails(self):
                self.addCleanup(self.fail, "in a cleanup")

            @unittest.expectedFailure
            def test_cleanup_fails_too(self):
                self.addCleanup(self.fail, "in a cleanup")
                self.fail("planted")
        """,
    )
    assert ended.outcomes() == {
        "test_fails": "XFAIL",
        **dict.fromkeys(["test_dies", "test_cleanup_fails", "test_cleanup_fails_too"], "FAILED"),
    }, ended.log
