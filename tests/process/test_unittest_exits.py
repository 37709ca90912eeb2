"""Ends of ranks: what a test declares, and what its runner half sees, with real ranks."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import run_cases
from tests.support.starter import Starter


def test_declared_exits_are_passes_and_others_are_not(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a fault test passes without its fault, because its exit codes are not checked."""
    source = """
        import functools
        import os
        import signal
        import sys
        import threading
        import dist_testing

        def decorated(function):
            @functools.wraps(function)
            def wrapper(self):
                function(self)

            return wrapper

        class Base(dist_testing.MultiProcessTestCase):
            world_size = 2

        class TestExpected(Base):
            @dist_testing.expected_exits({1: -signal.SIGKILL})
            def test_signal_passes(self):
                if self.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

            @decorated
            @dist_testing.expected_exits({0: 3, 1: 4})
            def test_codes_pass(self):
                sys.exit(3) if self.rank == 0 else os._exit(4)

            @decorated
            @dist_testing.planned_faults({0: "kill(1)"})
            @dist_testing.expected_exits({1: -signal.SIGKILL})
            def test_planned_kill_passes(self):
                if self.rank == 1:
                    signal.pause()

            @dist_testing.planned_faults({600: "kill(1)"})
            def test_late_kill_fails(self): ...

            @dist_testing.expected_exits({1: 3})
            def test_other_code_fails(self):
                if self.rank == 1:
                    sys.exit(4)

            @dist_testing.expected_exits({1: 3})
            def test_no_end_fails(self): ...

            @dist_testing.expected_exits({1: 3})
            def test_teardown_fails(self):
                if self.rank == 1:
                    self.addCleanup(int, "planted")
                    sys.exit(3)

        class TestTables(Base):
            def setUp(self):
                super().setUp()
                self._spawn_processes()
                self.skip_return_code_checks = [self.test_any_raise_fails, self.test_any_code_passes]
                test = getattr(self, self._testMethodName)
                if "six" in self._testMethodName:
                    self.special_return_code_checks = {test.__wrapped__: signal.SIGABRT}

            def test_any_code_passes(self):
                os._exit(7)

            def test_any_raise_fails(self):
                if self.rank == 1:
                    raise ValueError("planted")

            def test_six_of_first_passes(self):
                if self.rank == 0:
                    os._exit(6)

            def test_six_of_second_fails(self):
                if self.rank == 1:
                    os._exit(6)

            def test_six_and_another_fails(self):
                os._exit(6 if self.rank == 0 else 7)

            def test_six_and_a_raise_fails(self):
                if self.rank == 0:
                    os._exit(6)
                raise ValueError("planted")

        class TestUndeclared(Base):
            def test_exit_3_fails(self):
                if self.rank == 1:
                    sys.exit(3)

            def test_exit_0_fails(self):
                if self.rank == 1:
                    sys.exit(0)

        class TestAsTorchCounts(Base):
            exit_0_passes = True

            def test_exit_0_passes(self):
                if self.rank == 1:
                    sys.exit(0)

        del Base
    """
    ended = run_cases(starter, tmp_path, source)
    ended.check_by_name(
        16,
        "rank 1 exited with code 4",
        "expected to end by exit code 3, but it ended the test (passed)",
        "rank 0 ended by exit code 0; expected exit code 6",
    )


def test_handles_show_the_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test's runner half cannot inspect, wait for or end its ranks, or judge their exit codes."""
    source = """
        import os
        import signal
        import threading
        import torch.distributed as dist
        import dist_testing

        class TestHandles(dist_testing.MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                self.assertEqual(self.processes, [])
                self._spawn_processes()

            def _join_processes(self, fn):
                first, second = self.processes
                self.assertNotEqual(first.pid, second.pid)
                first.join()
                self.assertEqual(first.exitcode, 0)
                self.assertFalse(first.is_alive())
                self.assertTrue(second.is_alive())
                self.assertEqual(set(self.pid_to_pipe), {first.pid, second.pid})
                pipe = self.pid_to_pipe[second.pid]
                pipe.send(self.Event.GET_TRACEBACK)
                self.assertTrue(pipe.poll(5))
                self.assertIn("test_waits", pipe.recv())
                self._get_timedout_process_traceback()
                second.join(0.01)
                self.assertIsNone(second.exitcode)
                second.kill()
                second.join()
                self.pids = [first.pid, second.pid]
                super()._join_processes(fn)

            def _check_return_codes(self, fn, elapsed_time):
                self.assertEqual([handle.exitcode for handle in self.processes], [0, -signal.SIGKILL])
                self.assertEqual([handle.pid for handle in self.processes], self.pids)
                self.assertGreater(elapsed_time, 0)

            def test_waits(self):
                store = dist.FileStore(self.file_name, self.world_size)
                if self.rank == 1:
                    store.set("here", "")
                    threading.Event().wait()
                store.wait(["here"])

        class TestOneArgument(dist_testing.MultiProcessTestCase):
            world_size = 2

            def _check_return_codes(self, elapsed_time):
                self.assertEqual([handle.exitcode for handle in self.processes], [3, 0])
                self._check_no_test_errors(elapsed_time)

            def test_first_ends_early_and_second_goes_on(self):
                if self.rank == 0:
                    os._exit(3)

            def test_error_is_seen(self):
                if self.rank == 0:
                    os._exit(3)
                raise ValueError("planted")
    """
    ended = run_cases(starter, tmp_path, source)
    ended.check(passed="test_waits test_first_ends_early_and_second_goes_on", failed="test_error_is_seen")
    assert "[3, 10] != [3, 0]" in ended.log


_OLDER = """
    import os
    from dist_testing import MultiProcessTestCase

    class OfAnOlderTorch(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()
            if "any_code" in self._testMethodName:
                self.skip_return_code_checks = [getattr(self, self._testMethodName).__wrapped__]

        def _check_return_codes(self, elapsed_time):
            print("CODES", self._testMethodName, [process.exitcode for process in self.processes])
            super()._check_return_codes(elapsed_time)

        def _check_no_test_errors(self, elapsed_time):
            print("NO ERRORS", self._testMethodName)
            super()._check_no_test_errors(elapsed_time)

        def test_passes(self): ...

        def test_fails(self):
            raise ValueError("planted")

        def test_any_code(self):
            os._exit(3)

        def test_any_code_but_an_error(self):
            raise ValueError("planted")

    class OwnNoErrors(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()
            self.skip_return_code_checks = [self.test_it.__wrapped__]

        def _check_no_test_errors(self, elapsed_time):
            print("OWN", elapsed_time > 0)

        def test_it(self):
            raise ValueError("planted")
"""


def test_overrides_by_the_signatures_of_older_releases(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a class from the time of torch 2.5 fails by a TypeError, or its override is never called."""
    ended = run_cases(starter, tmp_path, _OLDER, "-rAP")
    ended.check(passed="test_passes test_any_code test_it", failed="test_fails test_any_code_but_an_error")
    said = [line for line in ended.log.splitlines() if line.startswith(("CODES", "NO ERRORS", "OWN"))]
    assert "CODES test_passes [0, 0]" in said
    assert "NO ERRORS test_any_code" in said
    assert "OWN True" in said
    assert not [line for line in said if line.startswith("CODES test_any_code")]
