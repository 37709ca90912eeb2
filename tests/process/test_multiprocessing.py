"""Processes of `multiprocessing` below ranks: its helpers, which stay, and workers that a test left running."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import run_cases
from tests.support.starter import Starter

_USES = """
    import multiprocessing
    import re
    import signal
    import time
    from pathlib import Path
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

    def test_shared_files(world):
        import torch
        import torch.multiprocessing

        strategy = torch.multiprocessing.get_sharing_strategy()
        torch.multiprocessing.set_sharing_strategy("file_system")
        KEPT.append(torch.ones(9).share_memory_())
        torch.multiprocessing.set_sharing_strategy(strategy)
        with Path({listing!r}).open("a") as file:
            (name,) = re.findall(r"/dev/shm/(torch_\\w+)", Path("/proc/self/maps").read_text())
            file.write(f"{{name}}\\n")

    def test_worker_stays(world):
        multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,)).start()

    def test_daemon_stays(world):
        multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,), daemon=True).start()

    def test_daemon_does_not_end(world):
        ignores = multiprocessing.Event()
        multiprocessing.get_context("fork").Process(target=ignore_sigterm, args=(ignores,), daemon=True).start()
        ignores.wait()

    def ignore_sigterm(ignores):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ignores.set()
        time.sleep(600)

    def test_daemon_with_handler_stays(world):
        # As torch's data loader does for its workers.
        def fail(*_):
            raise RuntimeError("a worker was killed")

        signal.signal(signal.SIGCHLD, fail)
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()

    def test_broken_pool_stays(world):
        pool = multiprocessing.get_context("fork").Pool(2)
        KEPT.append(pool)
        # An idle worker waits for work with the lock of the others, which its end does not give back.
        lock = pool._inqueue._rlock
        while lock.acquire(block=False):
            lock.release()
        for worker in pool._pool:
            worker.kill()

    def test_manager_stays(world):
        KEPT.append(multiprocessing.Manager())

    def test_pipe_stays(world):
        KEPT.append(multiprocessing.Pipe(duplex=False))

    def test_after(world): ...
"""


@pytest.mark.parametrize("isolation", ["pool", "fork"])
def test_helpers_of_multiprocessing_are_not_leaks_but_workers_are(
    starter: Starter, tmp_path: Path, isolation: str
) -> None:
    """If this fails, tests of data loaders fail by helper processes that they cannot end, or leaks pass."""
    listing = tmp_path / "segments"
    ended = run_cases(starter, tmp_path, _USES.format(isolation=isolation, listing=str(listing)))
    passed, failed = "test_shared_memory test_workers test_shared_files test_after", "test_worker_stays"
    # Only a worker pool would pass these on to the next case.
    stays = "test_daemon_stays test_daemon_with_handler_stays test_broken_pool_stays test_manager_stays test_pipe_stays"
    failed += " test_daemon_does_not_end"
    if isolation == "pool":
        ended.check(passed=passed, failed=f"{failed} {stays}")
    else:
        ended.check(passed=f"{passed} {stays}", failed=failed)
    segments = listing.read_text().splitlines()
    assert len(segments) == 2
    assert not [name for name in segments if Path("/dev/shm", name).exists()]
    if isolation == "pool":
        assert "running process(es)" in ended.log
        assert "changed and not undone: open file(s) pipe:[" in ended.log
