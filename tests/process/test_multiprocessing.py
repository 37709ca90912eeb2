"""Processes of `multiprocessing` below ranks: its own helpers, which stay, and what a test has left to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import run_cases
from tests.support.starter import Starter

_USES = """
    import multiprocessing
    import time
    from multiprocessing import shared_memory

    import pytest

    pytestmark = pytest.mark.distributed(world_size=2, isolation="{isolation}", init=False)
    KEPT = []


    def test_shared_memory(world):
        memory = shared_memory.SharedMemory(create=True, size=64)
        memory.close()
        memory.unlink()


    def test_workers(world):
        with multiprocessing.get_context("forkserver").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]


    def test_worker_stays(world):
        multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,), daemon=True).start()


    def test_pipe_stays(world):
        KEPT.append(multiprocessing.Pipe(duplex=False))


    def test_after(world):
        pass
"""


@pytest.mark.parametrize("isolation", ["pool", "fork"])
def test_helpers_of_multiprocessing_are_no_leak_and_a_worker_is(
    starter: Starter, tmp_path: Path, isolation: str
) -> None:
    """Shared memory and worker processes are what tests of data loaders use; nobody can undo the helpers."""
    ended = run_cases(starter, tmp_path, _USES.format(isolation=isolation))
    outcomes = {name.partition("[")[0]: outcome for name, outcome in ended.outcomes().items()}
    assert outcomes == {
        "test_shared_memory": "PASSED",
        "test_workers": "PASSED",
        "test_worker_stays": "FAILED",
        # Only ranks that are kept would hand it on.
        "test_pipe_stays": "FAILED" if isolation == "pool" else "PASSED",
        "test_after": "PASSED",
    }, ended.log
    if isolation == "pool":
        assert "running process(es)" in ended.log
        assert "changed and not undone: open file(s) pipe:[" in ended.log
