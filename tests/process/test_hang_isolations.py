"""Hangs are proven for every way to make ranks that are processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.children import run_pytest, write_file
from tests.support.hang_kinds import KINDS
from tests.support.hang_runs import ISOLATIONS, complaint, run_kinds
from tests.support.starter import Starter

_ISOLATIONS = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.distributed(world_size=3, timeout=300, isolation="spawn")
    def test_fresh(world):
        if world.rank != 2:
            dist.all_reduce(torch.ones(3))

    class TestPool:
        @pytest.mark.distributed(world_size=3, timeout=300, isolation="pool")
        @pytest.mark.parametrize("number", range(4))
        def test_pool(self, world, number):
            dist.all_reduce(torch.ones(3))
            if number != 2 or world.rank != 0:
                dist.barrier()
"""


def test_other_isolations_prove_it_too(starter: Starter, tmp_path: Path) -> None:
    """The user chooses how ranks are made, not what is found."""
    write_file(tmp_path, "test_cases.py", _ISOLATIONS)
    ended = run_pytest(starter, tmp_path, "-rA", "test_cases.py")
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert (
        "rank 2 ended the test; ranks 0, 1 wait for it in all_reduce #1 of the default group (test_cases.py:9)"
        in ended.log
    )
    assert "rank 0 ended the test; ranks 1, 2 wait for it in barrier #6 of the default group" in ended.log
    assert "3 passed" in ended.log
    assert "2 failed" in ended.log


# Interpreters take seconds of CPU to start, so an ordinary run starts those of torchrun only. A stress run takes all.
_IS_STRESS = "DIST_TESTING_STRESS_CASES" in os.environ
_KINDS = (
    tuple(KINDS)
    if _IS_STRESS
    else ("early return", "barrier in finally", "other root", "missing init_process_group", "other tag")
)


@pytest.mark.parametrize("isolation", ISOLATIONS if _IS_STRESS else ["torchrun"])
def test_kinds_of_hangs(tmp_path: Path, isolation: str) -> None:
    """If this fails, what a user learns of a hang depends on how the ranks were started, or on the hangs before it."""
    told = run_kinds(_KINDS, isolation, tmp_path)
    wrong = {name: text for name in _KINDS if (text := complaint(KINDS[name], isolation, told.get(name)))}
    assert not wrong, (tmp_path / "output.txt").read_text(encoding="utf-8", errors="replace")
