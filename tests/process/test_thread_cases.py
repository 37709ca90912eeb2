"""`MultiThreadedTestCase` in a child process: thread ranks that fail in every way, in the runner's own process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dist_testing import MultiThreadedTestCase
from tests.support.children import assert_no_folder_left, run_cases, run_pytest, write_file
from tests.support.starter import Starter

_CASES = """
    import sys
    import threading
    from pathlib import Path
    import torch
    import torch.distributed as dist
    import dist_testing

    NOTES = Path.cwd()
    MADE_BY_MODULE = object()

    class TestRanks(dist_testing.MultiThreadedTestCase):
        world_size = 3

        @classmethod
        def setUpClass(cls):
            super().setUpClass()
            cls.made_by_class = MADE_BY_MODULE

        def setUp(self):
            super().setUp()
            self.assertEqual(self.rank, self.MAIN_THREAD_RANK)
            self._spawn_threads()
            self.after_spawn = True

        def tearDown(self):
            (NOTES / f"torn-down-in-runner{self.rank}").touch()
            super().tearDown()

        def perThreadSetUp(self):
            self.value = self.rank

        def perThreadTearDown(self):
            dist.get_world_size()
            (NOTES / f"torn-down-{self.rank}").touch()

        def test_pass(self):
            total = torch.ones(1)
            dist.all_reduce(total)
            self.assertEqual(total.item(), 3)
            self.assertEqual(self.value, self.rank)
            self.assertIs(self.made_by_class, MADE_BY_MODULE)
            self.assertFalse(hasattr(self, "after_spawn"), "each rank has an instance of its own")
            self.addCleanup((NOTES / f"cleaned-up-{self.rank}").touch)

        def test_raise_on_1(self):
            if self.rank == 1:
                raise ValueError("planted on 1")
            dist.barrier()

        def test_raise_while_another_sleeps(self):
            if self.rank == 1:
                raise ValueError("planted beside a sleeper")
            if self.rank == 2:
                threading.Event().wait()

        def test_skip(self):
            self.skipTest("planted reason")

        def test_skip_of_one(self):
            if self.rank == 2:
                self.skipTest("alone")

        def test_skip_of_one_for_which_others_wait(self):
            if self.rank == 2:
                self.skipTest("alone, waited for")
            dist.barrier()

        def test_exit_3(self):
            if self.rank == 2:
                sys.exit(3)

        def test_exit_0(self):
            if self.rank == 2:
                sys.exit(0)

        def test_keyboard_interrupt(self):
            if self.rank == 1:
                raise KeyboardInterrupt

        def test_leaves_a_thread(self):
            threading.Thread(target=threading.Event().wait).start()

    class TestHangs(dist_testing.MultiThreadedTestCase):
        world_size = 3
        case_timeout_s = 3

        def test_all_hang(self):
            threading.Event().wait()

        def test_one_hangs(self):
            if self.rank == 1:
                threading.Event().wait()
            dist.barrier()

        def test_deadlock(self):
            if self.rank == 1:
                dist.recv(torch.ones(1), src=0)
            dist.barrier()

    class TestLast(dist_testing.MultiThreadedTestCase):
        world_size = "2"

        def test_asks_for_ranks_by_itself(self):
            dist.barrier()
            self.assertEqual(dist.get_world_size(), 2)
"""
_PASSED = "test_pass test_leaves_a_thread test_asks_for_ranks_by_itself"
_FAILED = (
    "test_raise_on_1 test_raise_while_another_sleeps test_skip_of_one"
    " test_skip_of_one_for_which_others_wait test_exit_3 test_exit_0 test_keyboard_interrupt"
    " test_all_hang test_one_hangs test_deadlock"
)
_SAID = (
    "rank 1 raised ValueError: planted on 1 in call",
    "ranks 0, 2: each lost a peer in barrier (PeerFailedError)",
    "rank 1 raised ValueError: planted beside a sleeper in call",
    "rank 2 was in call and was left behind: a thread cannot be stopped",
    "ranks disagree about a skip: rank 0 passed; rank 1 passed; rank 2 skipped: alone",
    "rank 0 was in barrier and waited for a rank that had skipped",
    "rank 2 exited with code 3 in call",
    "rank 2 exited with code 0 in call, without finishing the test",
    "rank 1 raised KeyboardInterrupt in call",
    "ranks 0, 1, 2 were still running at the deadline (0, 1, 2 in call)",
    "stacks of rank(s) 0, 1, 2:",
    "rank 1 did not come to where the others waited",
    "raised DeadlockError: Deadlock:",
)


def _assert_right(folder: Path, log: str) -> None:
    """Check the results that are the same in all ways to run the file."""
    assert_no_folder_left(folder)
    for said in _SAID:
        assert said in log, f"{said!r} is not in:\n{log}"
    notes = {path.name for path in folder.iterdir()}
    assert {f"{what}-{rank}" for what in ("cleaned-up", "torn-down") for rank in range(3)} <= notes
    assert {name for name in notes if "in-runner" in name} == {"torn-down-in-runner-1"}


def test_under_pytest(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a failing rank costs other tests, is not named, or stops the run."""
    write_file(tmp_path, "test_cases.py", _CASES)
    ended = run_pytest(starter, tmp_path, "-rA", "test_cases.py")
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    ended.check(passed=_PASSED, failed=_FAILED, log=["1 skipped", "planted reason"])
    _assert_right(tmp_path, ended.log)


def test_under_unittest(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `python -m unittest` does not end, because thread ranks are left in its process."""
    write_file(tmp_path, "test_cases.py", _CASES)
    child = starter.start(["-m", "unittest", "-v", "test_cases"], tmp_path, fresh=True)
    assert child.wait() == 1, child.log
    assert "FAILED (failures=10, skipped=1)" in child.log, child.log
    _assert_right(tmp_path, child.log)


# What is wrong in a class, to what the failure of its test says.
_WRONG = {
    "world_size = 0": "world_size = 0; expected a number of ranks from 1 to 1024",
    "world_size = 'two'": "world_size = 'two'",
    "world_size = 2.0": "world_size = 2.0",
    "isolation = 'fork'": "isolation = 'fork'",
    "case_timeout_s = 0": "case_timeout_s = 0",
    "setUp = lambda self: (self._spawn_threads(), self._spawn_threads())": "was called twice",
    "test_it = dist_testing.expected_exits({1: -9})(lambda self: None)": "@expected_exits",
    "nodes = 2": "nodes on a test whose ranks are threads",
    "async def test_it(self): pass": "async def",
    "_run = classmethod(lambda cls, *args: None)": "has not run",
}


def test_bad_classes_are_clear_errors(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a wrong class passes without running, or shows the library's internals."""
    base = "dist_testing.MultiThreadedTestCase"
    classes = [
        f"class Test{number}({base}):\n    def test_it(self): ...\n    {wrong}\n" for number, wrong in enumerate(_WRONG)
    ]
    ended = run_cases(starter, tmp_path, "\n".join(["import dist_testing\n", *classes]))
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    failures = re.split(r"^_{3,} Test\d\.test_it ", ended.log, flags=re.MULTILINE)[1:]
    for failure, said in zip(failures, _WRONG.values(), strict=True):
        assert said in failure
        assert "dist_testing/" not in failure, "a traceback through the library"


def test_wrong_method_name_is_an_error() -> None:
    """If this fails, a mistyped method name is accepted, or a class without a name, used as a namespace, is refused."""

    class Named(MultiThreadedTestCase):
        __test__ = False

        def test_it(self) -> None:
            """Never called."""

    Named()
    for case in (Named("test_it"), Named(methodName="test_it"), Named(method_name="test_it")):
        assert case._testMethodName == "test_it"
    with pytest.raises(ValueError, match=r"Named.*test_else"):
        Named("test_else")


def test_class_may_run_its_tests_itself(starter: Starter, tmp_path: Path) -> None:
    """If this fails, classes that override torch's hooks are not called, or hide the failures that they catch."""
    source = """
        import sys
        import torch.distributed as dist
        import dist_testing

        class TestOwnRun(dist_testing.MultiThreadedTestCase):
            world_size = 2

            @classmethod
            def _run(cls, test_name, rank, world_size, **kwargs):
                self = cls(test_name)
                self.rank = rank
                self.from_run = world_size
                self.run_test_with_threaded_pg(test_name, rank, world_size)

            def test_it(self):
                assert self.from_run == dist.get_world_size() == 2

        class TestOwnGroup(dist_testing.MultiThreadedTestCase):
            world_size = 2

            def run_test_with_threaded_pg(self, test_name, rank, world_size):
                dist.init_process_group("threaded", rank=rank, world_size=world_size, store=self.global_store)
                try:
                    getattr(self, test_name)()
                except BaseException:
                    self.exception_queue.put((rank, sys.exc_info()))
                finally:
                    dist.destroy_process_group()

            def test_passes(self):
                dist.barrier()

            def test_fails(self):
                assert self.rank == 0, "planted and caught"
    """
    ended = run_cases(starter, tmp_path, source)
    log = ["rank 1 raised AssertionError: planted and caught"]
    ended.check(passed="test_it test_passes", failed="test_fails", log=log)


def test_interrupted_runner_ends(starter: Starter, tmp_path: Path) -> None:
    """If this fails, SIGTERM in the middle of a case does not end the run, because threads are running."""
    source = """
        import os
        import signal
        import threading
        import dist_testing

        class TestStopped(dist_testing.MultiThreadedTestCase):
            world_size = 2

            def test_it(self):
                if self.rank == 0:
                    os.kill(os.getpid(), signal.SIGTERM)
                threading.Event().wait()

            def test_never_run(self): ...
    """
    write_file(tmp_path, "test_cases.py", source)
    ended = run_pytest(starter, tmp_path, "-rA", "test_cases.py")
    assert ended.code == pytest.ExitCode.INTERRUPTED, ended.log
    assert "SIGTERM" in ended.log
