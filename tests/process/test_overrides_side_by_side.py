"""Classes that override the members of torch's classes: the same calls, and the same outcomes, as with torch's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.children import run_cases, write_file
from tests.support.starter import Starter

_CASES = """
    import json
    import os
    import sys
    import threading
    import time
    import unittest
    from pathlib import Path
    import torch
    import torch.distributed as dist

    if os.environ["BASE"] == "torch":
        from torch.testing._internal import common_distributed
    else:
        from dist_testing.compat import common_distributed

    MultiProcessTestCase = common_distributed.MultiProcessTestCase
    MultiThreadedTestCase = common_distributed.MultiThreadedTestCase
    # Seconds.
    common_distributed.TIMEOUT_OVERRIDE["test_hangs"] = 5

    told = {}

    def tell(test, *facts):
        told.setdefault(test, []).append(list(facts))

    class Threads(MultiThreadedTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def test_passes(self):
            dist.barrier()

        def test_fails(self):
            if self.rank == 1:
                raise ValueError("planted")

        def test_skips(self):
            self.skipTest("planted")

    class OwnCheck(Threads):
        @classmethod
        def _check_return_codes(cls, failed_ranks, timeout, fn):
            tell(
                fn.__name__,
                sorted(
                    (rank, kind.__name__, str(error).splitlines()[0], bool(trace))
                    for rank, (kind, error, trace) in failed_ranks
                ),
                type(timeout).__name__ in ("int", "float"),
            )

    class AlsoOwnCheck(Threads):
        @classmethod
        def _check_return_codes(cls, failed_ranks, timeout, fn):
            super()._check_return_codes(failed_ranks, timeout, fn)

    class Forgives(Threads):
        @classmethod
        def _check_return_codes(cls, failed_ranks, timeout, fn):
            kept = [entry for entry in failed_ranks if not isinstance(entry[1][1], ValueError)]
            super()._check_return_codes(kept, timeout, fn)

    class Invents(Threads):
        @classmethod
        def _check_return_codes(cls, failed_ranks, timeout, fn):
            error = ValueError("invented")
            failed_ranks.append((0, (ValueError, error, None)))
            super()._check_return_codes(failed_ranks, timeout, fn)

    class OwnJoin(Threads):
        @classmethod
        def _join_threads(cls, threads, fn):
            tell(fn.__name__, len(threads), all(callable(thread.join) for thread in threads))
            for thread in threads:
                thread.join()
            tell(fn.__name__, [thread.is_alive() for thread in threads])
            super()._join_threads(threads, fn)

    class OwnSpawn(Threads):
        def _spawn_threads(self):
            tell(self._current_test_name, len(self.threads))
            super()._spawn_threads()
            tell(self._current_test_name, len(self.threads), self.rank)

    class Processes(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            if os.environ["BASE"] == "torch":
                # As torch's `_spawn_processes`, but forked: a fresh interpreter per rank takes seconds.
                self._start_processes(torch.multiprocessing.get_context("fork").Process)
            else:
                self._spawn_processes()

        def tearDown(self):
            super().tearDown()
            Path(self.file_name).unlink(missing_ok=True)

    class ProcessCheck(Processes):
        def test_codes(self):
            sys.exit(3 if self.rank == 0 else 0)

        def _check_return_codes(self, fn, elapsed_time):
            tell(fn.__name__, [process.exitcode for process in self.processes], elapsed_time > 0)
            self.skip_return_code_checks = [fn]
            super()._check_return_codes(fn, elapsed_time)

    class OwnStart(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._fork_processes()

        def _fork_processes(self):
            if os.environ["BASE"] == "torch":
                # Of older releases.
                self._start_processes(torch.multiprocessing.get_context("fork").Process)
            else:
                super()._fork_processes()

        def _start_processes(self, proc):
            os.environ["SET_FOR_RANKS"] = "1"
            tell(self._testMethodName, len(self.processes))
            super()._start_processes(proc)
            del os.environ["SET_FOR_RANKS"]

        def test_variable(self):
            assert os.environ["SET_FOR_RANKS"] == "1"

    class OwnJoinOfProcesses(Processes):
        def _join_processes(self, fn):
            started = time.time()
            while not all(process.exitcode is not None for process in self.processes):
                time.sleep(0.01)
            tell(fn.__name__, [process.exitcode for process in self.processes])
            self._check_return_codes(fn, time.time() - started)

        def test_passes(self): ...

        def test_fails(self):
            raise ValueError("planted")

        def test_fails_on_one(self):
            if self.rank == 1:
                raise ValueError("planted")

    class OwnJoinAndCheck(OwnJoinOfProcesses):
        def _check_return_codes(self, fn, elapsed_time):
            assert not any(process.exitcode for process in self.processes)

    class OwnJoinOfAnyCode(OwnJoinOfProcesses):
        def setUp(self):
            super().setUp()
            self.skip_return_code_checks = [getattr(self, self._testMethodName).__wrapped__]

        def test_any_code(self):
            if self.rank == 0:
                os.kill(os.getpid(), 9)
            # Longer than the other ranks of a failed test may go on.
            time.sleep(3)

    class OwnLimit(Processes):
        def _get_timedout_process_traceback(self):
            tell(self._testMethodName, len(self.processes))
            raise KeyError("planted")

        def test_hangs(self):
            threading.Event().wait()

    class ProcessCheckFails(Processes):
        def test_raises(self):
            raise ValueError("planted")

        def _check_return_codes(self, fn, elapsed_time):
            super()._check_return_codes(fn, elapsed_time)

    if __name__ == "__main__":
        outcomes = {}
        for cls in (
            OwnCheck, AlsoOwnCheck, Forgives, Invents, OwnJoin, OwnSpawn,
            OwnStart, OwnJoinOfProcesses, OwnJoinAndCheck, OwnJoinOfAnyCode, OwnLimit, ProcessCheck, ProcessCheckFails,
        ):
            told.clear()
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(cls):
                result = unittest.TestResult()
                test.run(result)
                bad = "failed" if result.failures or result.errors else "skipped" if result.skipped else "passed"
                name = test._testMethodName
                outcomes[f"{cls.__name__}.{name}"] = [bad, told.get(name, [])]
        Path(os.environ["OUTCOMES"]).write_text(json.dumps(outcomes))
"""

_PASSED: list[object] = ["passed", []]
_FAILED: list[object] = ["failed", []]
_SKIPPED: list[object] = ["skipped", []]
_ALIKE = {
    "OwnCheck.test_passes": ["passed", [[[], True]]],
    "OwnCheck.test_fails": ["passed", [[[[1, "ValueError", "planted", True]], True]]],
    "AlsoOwnCheck.test_passes": _PASSED,
    "AlsoOwnCheck.test_fails": _FAILED,
    "AlsoOwnCheck.test_skips": _SKIPPED,
    "Forgives.test_passes": _PASSED,
    "Forgives.test_fails": _PASSED,
    "Forgives.test_skips": _SKIPPED,
    "Invents.test_passes": _FAILED,
    "Invents.test_fails": _FAILED,
    "Invents.test_skips": _FAILED,
    "OwnJoin.test_passes": ["passed", [[2, True], [[False, False]]]],
    "OwnJoin.test_fails": ["failed", [[2, True], [[False, False]]]],
    "OwnJoin.test_skips": ["skipped", [[2, True], [[False, False]]]],
    "OwnSpawn.test_passes": ["passed", [[0], [2, -1]]],
    "OwnSpawn.test_fails": ["failed", [[0], [2, -1]]],
    "OwnSpawn.test_skips": ["skipped", [[0], [2, -1]]],
    "OwnStart.test_variable": ["passed", [[0]]],
    "OwnJoinOfProcesses.test_passes": ["passed", [[[0, 0]]]],
    "OwnJoinOfProcesses.test_fails": ["failed", [[[10, 10]]]],
    "OwnJoinOfProcesses.test_fails_on_one": ["failed", [[[0, 10]]]],
    "OwnJoinAndCheck.test_passes": ["passed", [[[0, 0]]]],
    "OwnJoinAndCheck.test_fails": ["failed", [[[10, 10]]]],
    "OwnJoinAndCheck.test_fails_on_one": ["failed", [[[0, 10]]]],
    "OwnJoinOfAnyCode.test_passes": ["passed", [[[0, 0]]]],
    "OwnJoinOfAnyCode.test_fails": ["failed", [[[10, 10]]]],
    "OwnJoinOfAnyCode.test_fails_on_one": ["failed", [[[0, 10]]]],
    "OwnJoinOfAnyCode.test_any_code": ["passed", [[[-9, 0]]]],
    "OwnLimit.test_hangs": ["failed", [[2]]],
    "ProcessCheck.test_codes": ["passed", [[[3, 0], True]]],
    "ProcessCheckFails.test_raises": _FAILED,
}


@pytest.mark.parametrize("base", ["torch", "ours"])
def test_overrides_of_torchs_members_are_called_as_by_torch(starter: Starter, tmp_path: Path, base: str) -> None:
    """If this fails, a class that judges its ranks itself gets other arguments than torch's class gives it."""
    write_file(tmp_path, "both.py", _CASES)
    outcomes = tmp_path / "outcomes.json"
    child = starter.start(["both.py"], tmp_path, env={"BASE": base, "OUTCOMES": str(outcomes)})
    assert child.wait() == 0, child.log
    found = json.loads(outcomes.read_text())
    # Ranks that skip are in the list, each with its SkipTest.
    outcome, ((entries, has_limit),) = found.pop("OwnCheck.test_skips")
    assert (outcome, has_limit) == ("passed", True)
    assert [entry[:3] for entry in entries] == [[rank, "SkipTest", "planted"] for rank in range(2)]
    assert found == _ALIKE, child.log


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


_WITHOUT_VERDICT = """
    from dist_testing import MultiProcessTestCase

    class Spawning(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_it(self): ...

    class JudgesNothing(Spawning):
        def _join_processes(self, fn):
            for process in self.processes:
                process.join()

        def test_judges_nothing(self):
            raise ValueError("planted")

    class JoinsNothing(MultiProcessTestCase):
        def _join_processes(self, fn): ...

        def test_joins_nothing(self):
            raise ValueError("planted")

    class JudgesWithoutRanks(MultiProcessTestCase):
        def _join_processes(self, fn):
            self._check_return_codes(fn, 0.0)

        def test_without_ranks(self):
            raise ValueError("planted")

    class MakesProcesses(Spawning):
        def _start_processes(self, proc):
            for rank in range(2):
                proc(target=print).start()

        def test_makes_processes(self):
            raise ValueError("planted")
"""


def test_overrides_without_a_verdict_are_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a class that never judges its ranks is green, whatever they do."""
    names = ("test_judges_nothing", "test_joins_nothing", "test_without_ranks", "test_makes_processes")
    ended = run_cases(starter, tmp_path, _WITHOUT_VERDICT, "-k", " or ".join(names))
    assert ended.outcomes() == dict.fromkeys(names, "FAILED"), ended.log
    for name in names[:2]:
        assert f"{name}: the test has no verdict: its ranks have not been judged." in ended.log
    assert "test_without_ranks: no ranks were started, so the test has not run." in ended.log
    assert "_start_processes has made a process by itself." in ended.log
