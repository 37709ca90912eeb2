"""`start_processes`: plain tests that call a function on every rank of a world."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import run_cases, write_file
from tests.support.starter import Starter

# The ranks are not told to import what only a test imports, by `dist_testing.start_processes`.
_CALLS = """
    import os
    import sys
    import threading
    import unittest
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path
    import pytest
    import torch
    import torch.distributed as dist
    import dist_testing

    def sums(rank, factor, folder):
        # RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are enough.
        dist.init_process_group("gloo")
        total = torch.full((1,), float(factor * (rank + 1)))
        dist.all_reduce(total)
        Path(folder, f"{rank}-{os.environ['SET_BY_TEST']}").write_text(str(total.item()))

    def fails(rank):
        dist.init_process_group("gloo")
        if rank == 1:
            raise ValueError("planted")
        dist.barrier()

    def skips(rank, way):
        if way == "unittest":
            raise unittest.SkipTest("of unittest")
        if way == "pytest":
            pytest.skip("of pytest")
        sys.exit(dist_testing.TEST_SKIPS["small_worldsize"].exit_code)

    def hangs(rank):
        if rank == 1:
            threading.Event().wait()  # proves nothing, so the limit ends it

    @pytest.mark.parametrize("method", [None, "spawn"])
    def test_sums(method, tmp_path, monkeypatch):
        monkeypatch.setenv("SET_BY_TEST", "here")
        dist_testing.start_processes(sums, (10, str(tmp_path)), nprocs=2, start_method=method)
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0-here": "30.0", "1-here": "30.0"}

    def test_fails():
        dist_testing.start_processes(fails, nprocs=2)

    @pytest.mark.parametrize("way", ["unittest", "pytest", "code"])
    def test_skips(way):
        dist_testing.start_processes(skips, args=(way,), nprocs=2)

    def test_hangs():
        dist_testing.start_processes(hangs, nprocs=2, timeout=2)

    def test_in_threads():
        with ThreadPoolExecutor(2) as threads:
            for call in [threads.submit(dist_testing.start_processes, hangs, nprocs=1) for _ in range(2)]:
                call.result()

    def test_of_a_failure():
        with pytest.raises(AssertionError, match="rank 1 raised ValueError: planted"):
            dist_testing.start_processes(fails, nprocs=2)

    class PlainTest(unittest.TestCase):
        def test_method_fails(self):
            dist_testing.start_processes(fails, nprocs=2)

    if __name__ == "__main__":
        unittest.main()
"""


def test_a_function_runs_on_every_rank_and_its_world_is_judged(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a suite with a helper of its own around `mp.spawn` has to write the engine's front end itself."""
    ended = run_cases(starter, tmp_path, _CALLS)
    ended.check(
        passed="test_sums[None] test_sums[spawn] test_in_threads test_of_a_failure",
        failed="test_fails test_hangs test_method_fails",
    )
    for reason in ("of unittest", "of pytest", "Skipped due to small world size."):
        assert f": {reason}" in ended.log, reason
    assert "test_cases.fails (world of 2): rank 1 raised ValueError: planted in call" in ended.log
    assert "For a longer limit, set the call's timeout." in ended.log


def test_a_unittest_program_can_call_it(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the function works under pytest only: a function of the main module has another name there."""
    write_file(tmp_path, "test_cases.py", _CALLS)
    child = starter.start(["test_cases.py", "PlainTest"], tmp_path)
    assert child.wait() == 1
    assert "rank 1 raised ValueError: planted" in child.log
    assert "Ran 1 test" in child.log


_WRONG = r"""
    import multiprocessing
    import pytest
    from dist_testing import start_processes
    from dist_testing.core.ground.errors import UsageError

    def nothing(rank): ...

    async def waits(rank): ...

    @pytest.mark.distributed(world_size=1)
    def test_on_a_rank(world):
        with pytest.raises(UsageError, match=r"start_processes\(.*nothing\) was called on rank 0 of a world\."):
            start_processes(nothing, nprocs=2)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"fn": 3}, "fn = 3; expected a function"),
            ({"fn": waits}, "expected a plain function, not an async def"),
            ({"fn": lambda rank: None}, "cannot be sent to the ranks"),
            ({"args": [1]}, "args = [1]; expected a tuple"),
            ({"args": (3, lambda: None)}, "args[1] = <function"),
            ({"args": (multiprocessing.Queue(),)}, "args[0] = <multiprocessing.queues.Queue"),
            ({"nprocs": 0}, "world_size = 0; expected a number of ranks"),
            ({"nprocs": "2"}, "world_size = '2'; expected a number of ranks"),
            ({"join": False}, "join = False; expected True"),
            ({"start_method": "threads"}, "start_method = 'threads'; expected one of fork, forkserver, spawn"),
            ({"timeout": 0}, "timeout = 0; expected a number of seconds"),
            ({"timeout": True}, "timeout = True; expected a number of seconds"),
        ],
    )
    def test_refuses(change, said):
        with pytest.raises(UsageError) as caught:
            start_processes(**{"fn": nothing, "nprocs": 2, **change})
        assert said in str(caught.value)
        assert len(str(caught.value).splitlines()) == 3
"""


def test_impossible_arguments_are_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a wrong argument, or a call on a rank, ends in a traceback, has no effect, or blames a sandbox."""
    ended = run_cases(starter, tmp_path, _WRONG)
    assert set(ended.outcomes().values()) == {"PASSED"}, ended.log
