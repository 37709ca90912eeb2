"""A memory limit: ranks that really allocate are ended and named; shared pages do not count for each rank."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dist_testing.core.engine.hooks import CaseStart, EndCase
from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.core.ground.errors import UsageError
from dist_testing.memory_limit import NAME, MemoryWatch, read_limit
from dist_testing.memory_limit import _quick_bytes as quick_bytes
from tests.support.children import run_cases
from tests.support.forks import forked
from tests.support.starter import Starter

_CASES = """
    import subprocess
    import sys
    import threading
    import pytest
    import torch
    import dist_testing

    ENDLESS = "kept = []\\nwhile True: kept.append(bytearray(b'x' * (1 << 22)))"

    @pytest.mark.distributed(world_size=4, memory_limit="700MiB")
    def test_rank(world):
        if world.rank == 2:
            exec(ENDLESS)
        world.barrier()

    @pytest.mark.distributed(world_size=2)
    def test_child(world):
        if world.rank == 1:
            subprocess.run([sys.executable, "-c", ENDLESS])
        world.barrier()

    @pytest.mark.distributed(world_size=2)
    def test_all(world):
        exec(ENDLESS)

    class TestPool:
        @pytest.mark.distributed(world_size=2, isolation="pool")
        def test_first(self, world): ...

        @pytest.mark.distributed(world_size=2, isolation="pool")
        def test_second(self, world):
            if world.rank == 0:
                exec(ENDLESS)
            world.barrier()

    class TestUnit(dist_testing.MultiProcessTestCase):
        memory_limit = "600MiB"

        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_method(self):
            if self.rank == 1:
                exec(ENDLESS)
            threading.Event().wait()

    @pytest.mark.distributed(world_size=2)
    def test_after(world):
        world.barrier()
"""


def test_the_rank_that_uses_most_is_named(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a leak of one rank takes the memory of the machine, and the kernel ends whatever it likes."""
    ended = run_cases(starter, tmp_path, _CASES, "--dist-memory-limit=800MiB", "--junitxml=cases.xml")
    assert ended.outcomes() == {
        **dict.fromkeys(("test_rank", "test_child", "test_all", "test_second", "test_method"), "FAILED"),
        **dict.fromkeys(("test_first", "test_after"), "PASSED"),
    }, ended.log
    failures = ended.failures()
    for name, limit, size, rank in (
        ("test_rank", 700, 4, 2),
        ("test_child", 800, 2, 1),
        ("test_second", 800, 2, 0),
        ("test_method", 600, 2, 1),
    ):
        report = failures[name]
        assert f" MiB, and memory_limit is {limit}MiB: most of it rank {rank}, " in report, report
        assert f"\nMemory of the ranks at its peak: rank {rank} " in report
        assert f"\nrank {rank} of {size} failed first: it was in call and was stopped by the runner" in report
        assert "Victims: rank" in report
    # No single rank is to blame.
    assert " MiB, and memory_limit is 800MiB: most of it rank " in failures["test_all"]
    assert "failed first" not in failures["test_all"]
    assert 'name="memory_peaks" value="rank 2 ' in (tmp_path / "cases.xml").read_text()


def _watch(pids: list[int], limit: str) -> MemoryWatch:
    records = [SimpleNamespace(rank=rank, pid=pid, has_ended=False) for rank, pid in enumerate(pids)]
    watch = MemoryWatch(cast("Any", SimpleNamespace(records=records, is_running=True)))
    case = Case("test_x", len(pids), CaseBody("none"), 60.0, "fork", settings={NAME: read_limit("test_x", limit)})
    watch.begin_case(CaseStart(case, 0.0, keeps_ranks=False))
    return watch


def test_pages_that_ranks_share_count_once() -> None:
    """If this fails, forked ranks, which share torch's memory, reach a limit that they are far below."""
    kept = bytearray(b"x" * (256 << 20))
    with contextlib.ExitStack() as forks:
        # They do nothing, and share the memory of this process.
        pids = [forks.enter_context(forked()) for _ in range(3)]
        mine = quick_bytes(os.getpid())
        assert mine > len(kept)
        assert sum(map(quick_bytes, pids)) > 2 * mine
        # Four processes share the memory: three quarters of it are in these.
        watch = _watch(pids, f"{mine >> 20}MiB")
        assert watch.poll(1.0) is None
        assert mine / 2 < sum(watch._peaks.values()) < mine
        end = _watch(pids, f"{mine >> 21}MiB").poll(1.0)
        assert isinstance(end, EndCase)
        assert "the ranks use" in end.reason
        # Ranks that are threads have one process, which counts once.
        assert len(_watch([pids[0]] * 3, "1MiB")._ranks_by_pid()) == 1


@pytest.mark.parametrize("value", ["2", 2048, "2GB", "0GiB", "1KiB", "-1GiB", "2 GiB", None, True, "nanGiB"])
def test_a_limit_has_a_size_and_a_unit(value: object) -> None:
    """If this fails, 2048 is bytes for one reader and MiB for another, and a typing error limits nothing."""
    with pytest.raises(UsageError, match=r"^the test: memory_limit = .*; expected a size from 1MiB.*\n.+\n.+$"):
        read_limit("the test", value)
    assert read_limit("the test", "1.5GiB").size == 3 << 29
