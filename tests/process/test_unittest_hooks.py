"""The hooks that unittest classes override and tests read, where ranks find a class, and how they are made."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from dist_testing import MultiProcessTestCase
from tests.support.children import run_cases
from tests.support.starter import Starter

_HOOKS = """
    import os
    import sys
    import unittest
    from pathlib import Path
    import torch
    import torch.distributed as dist
    import dist_testing

    NOTES = Path.cwd()

    # Classes that make their group in `_run`, or skip there; code after the test counts, too.

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

    class Group(WithGroup):
        __test__ = True

        def test_pass(self):
            total = torch.ones(1)
            dist.all_reduce(total)
            self.assertEqual(total, 2)

        def test_skip(self):
            self.skipTest("planted reason")

        def test_fails(self):
            self.assertNotEqual(self.rank, 1, "planted")

    class Never(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_never(self):
            raise ValueError("was called")

    class SkipBefore(Never):
        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **kwargs):
            sys.exit(dist_testing.TEST_SKIPS["multi-gpu-4"].exit_code)

    class RaisesBeforeFails(Never):
        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **kwargs):
            raise ValueError("planted before")

    class ForgetsTestFails(Never):
        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **kwargs): ...

    class ForgetsRankFails(Never):
        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **kwargs):
            cls(test_name).run_test(test_name, pipe)

    class OwnRunTest(Never):
        def run_test(self, test_name, pipe):
            (NOTES / f"own-{self.rank}").touch()

    del Never

    # Ways to start ranks. A test whose ranks never started must not pass.

    class Base(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_it(self):
            self.assertIs(dist_testing.MultiProcessTestCase, sys.modules["dist_testing"].MultiProcessTestCase)

    class Fork(Base):
        isolation = "spawn"

        def setUp(self):
            super().setUp()
            self._fork_processes()

    class ProcessClass(Base):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("spawn").Process)

    class OtherCallableFails(Base):
        def setUp(self):
            super().setUp()
            self._start_processes(lambda *args, **kwargs: None)

    class NoRanksFails(Base):
        def _spawn_processes(self): ...

    class MakesProcessesFails(Base):
        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def _start_processes(self, proc):
            proc(target=print).start()

    class JudgesNothingFails(Base):
        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def _join_processes(self, fn):
            for process in self.processes:
                process.join()

    class JoinsNothingFails(Base):
        def _join_processes(self, fn): ...

    class RunsHere(Base):
        def _spawn_processes(self): ...

        def join_or_run(self, fn):
            return fn

        def test_it(self):
            self.assertEqual(self.rank, self.MAIN_PROCESS_RANK)

    class CoroutineFails(Base):
        async def test_it(self):
            raise ValueError

    class GeneratorFails(Base):
        def test_it(self):
            yield

    class LoopFails(Base, unittest.IsolatedAsyncioTestCase):
        def test_it(self):
            pass

    class ThreadFails(Base):
        isolation = "thread"

    del Base
"""


def test_overridden_hooks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a class that makes its group in `_run` breaks, or a test whose ranks never started passes."""
    ended = run_cases(starter, tmp_path, _HOOKS)
    ended.check_by_name(
        18,
        "planted reason",
        "Need at least 4 CUDA devices",
        "ValueError: planted before",
        "_run has returned, and test_never has not run",
        "run_test was called on an instance that has no rank",
    )
    reports = re.split(r"^_{3,} ", ended.log, flags=re.MULTILINE)
    for said in (
        "not a process class of multiprocessing",
        "no ranks were started, so the test has not run",
        "_start_processes has made a process by itself.",
        "JudgesNothingFails.test_it: the test has no verdict: its ranks have not been judged.",
        "JoinsNothingFails.test_it: the test has no verdict: its ranks have not been judged.",
        "the test method is an async def",
        "the test method is a generator",
        "the class derives from unittest.IsolatedAsyncioTestCase",
        "Derive the class from MultiThreadedTestCase",
    ):
        (report,) = (text for text in reports if said in text.partition("short test summary")[0])
        assert "dist_testing/" not in report, "a traceback through the library"
    notes = {path.name for path in tmp_path.iterdir()}
    assert {name for name in notes if name.startswith("after-")} == {"after-test_pass-0", "after-test_pass-1"}
    assert {f"own-{rank}" for rank in range(2)} <= notes


_PROCESSES = """
    import os
    import random
    import sys
    import tempfile
    import unittest
    from pathlib import Path
    import torch
    import torch.distributed as dist
    import dist_testing

    class Base(dist_testing.MultiProcessTestCase):
        world_size = 2

        def use_group(self):
            dist.init_process_group(
                "gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=self.world_size
            )
            dist.barrier()

    # Each test has a fresh process, with the same random numbers.

    class Fresh(Base):
        def leave_traces(self):
            self.assertFalse(dist.is_initialized())
            self.assertNotIn("wave", sys.modules)
            self.assertNotIn("LEFT_BEHIND", os.environ)
            numbers = (random.random(), torch.rand(1).item())
            Path(f"numbers-{self._testMethodName}-{self.rank}").write_text(repr(numbers))
            import wave
            os.environ["LEFT_BEHIND"] = "yes"
            self.use_group()

        def test_one(self):
            self.leave_traces()

        def test_other(self):
            self.leave_traces()
            self.enterContext(tempfile.TemporaryDirectory(dir=Path.cwd()))

    # A file that never destroys its group, as most, works in a pool as on fresh ranks.

    class Pooled(Base):
        isolation = "pool"

        def use_pooled_group(self):
            Path(f"pid-{os.getpid()}").touch()
            self.use_group()

        def test_one(self):
            self.use_pooled_group()

        def test_other(self):
            self.use_pooled_group()

    class Keeps(Base):
        isolation = "pool"
        destroy_pg_upon_exit = False

        def test_1(self):
            self.assertFalse(dist.is_initialized())

        def test_2_fails(self):
            self.use_group()

    # A crash, or a failure around the method, is no expected failure.

    class Expected(Base):
        @unittest.expectedFailure
        def test_expected(self):
            self.assertEqual(self.rank, 0)

        @unittest.expectedFailure
        def test_death_fails(self):
            os.abort()

        @unittest.expectedFailure
        def test_cleanup_fails(self):
            self.addCleanup(self.fail, "in a cleanup")

        @unittest.expectedFailure
        def test_cleanup_fails_too(self):
            self.addCleanup(self.fail, "in a cleanup")
            self.fail("planted")

    del Base
"""


def test_processes_of_tests(starter: Starter, tmp_path: Path) -> None:
    """If this fails, one test's state reaches the next, or a crash counts as the expected failure."""
    ended = run_cases(starter, tmp_path, _PROCESSES)
    ended.check_by_name(9, "process groups, from 0 to 1", "1 xfailed")
    numbers = [path.read_text() for path in tmp_path.glob("numbers-*")]
    assert len(numbers) == 4
    assert len(set(numbers)) == 1
    assert not list(tmp_path.glob("tmp?*")), "a context that was entered on a rank was not closed"
    assert len(list(tmp_path.glob("pid-*"))) == 2


_FOUND = """
    import unittest
    import dist_testing

    class Outer:
        class TestNested(dist_testing.MultiProcessTestCase):
            world_size = 2

            def test_nested(self):
                self.assertIn(self.rank, range(2))

    TestNested = Outer.TestNested

    def make(number):
        class TestMade(dist_testing.MultiProcessTestCase):
            world_size = 2

            def test_made(self):
                self.assertEqual(self.number, number)

        TestMade.number = number
        return TestMade

    TestFirst, TestSecond = make(1), make(2)

    def check(self):
        self.assertEqual(self.device, "planted")

    TestTyped = type(
        "TestOfType",
        (dist_testing.MultiProcessTestCase,),
        {"world_size": 2, "device": "planted", "test_typed": check, "test_typed_x_1__y_None_float32": check},
    )

    class RunsAnother(unittest.TestCase):
        def test_made_too_late(self):
            class TestLate(dist_testing.MultiProcessTestCase):
                world_size = 1

                def test_late(self): ...

            result = unittest.TestResult()
            TestLate("test_late").run(result)
            ((_, text),) = result.failures
            self.assertIn("TestLate does not exist on the rank", text)
"""


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_classes_are_found_wherever_they_were_created(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, nested classes, and classes that suites make with `type()` or in a test, do not run on ranks."""
    only = ["-k", "not late"] if isolation == "spawn" else []
    ended = run_cases(starter, tmp_path, _FOUND, f"--dist-isolation={isolation}", *only)
    assert ended.code == 0, ended.log
    assert f"{5 if only else 6} passed" in ended.log


def test_a_plain_test_can_run_a_class_of_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a project cannot test its own base classes: pytest has not collected the class."""
    source = """
        import unittest
        import dist_testing

        def test_outer():
            class Inner(dist_testing.MultiProcessTestCase):
                world_size = 2

                def test_passes(self): ...

                def test_raises(self):
                    raise ValueError("planted")

            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(Inner).run(result)
            assert result.testsRun == 2 and not result.errors
            ((_, text),) = result.failures
            assert "raised ValueError: planted in call" in text
    """
    run_cases(starter, tmp_path, source).check(passed="test_outer")


def test_constructor_accepts_both_names_of_its_argument() -> None:
    """If this fails, unittest's loader, torch's helpers or tools cannot create instances in their own way."""

    class Case(MultiProcessTestCase):
        def test_it(self) -> None:
            """Never called."""

    for case in (Case("test_it"), Case(methodName="test_it"), Case(method_name="test_it")):
        assert case._testMethodName == "test_it"
        assert case._current_test_name() == "test_it"
        assert case.test_it.__wrapped__ == Case.test_it.__get__(case)  # type: ignore[attr-defined]
        assert (case.rank, case.is_master, case.world_size) == (-1, False, 4)
    assert Case().id().endswith("runTest")
    with pytest.raises(ValueError, match=r"no such test method in <class '.*Case'>: test_missing"):
        Case("test_missing")


def test_a_mistyped_world_size_is_told() -> None:
    """If this fails, a class with `worldsize = 2` has four ranks, and nothing says why."""

    class Mistyped(MultiProcessTestCase):
        worldsize = 2

    class Sized(Mistyped):
        world_size = 2

    with pytest.warns(RuntimeWarning, match=r"Did you mean world_size\?"):
        Mistyped()._check_members()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sized()._check_members()
