"""The collective ledger of ranks that wait for each other, as an event and as a picture of the report."""

from __future__ import annotations

from pathlib import Path

from dist_testing.report.gather import gather
from dist_testing.report.page import lanes
from tests.support.children import run_cases
from tests.support.starter import Starter

_SOURCE = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.distributed(world_size=2)
    def test_waits(world):
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
        if world.rank == 0:
            dist.broadcast(torch.ones(1), 0)
        else:
            dist.all_reduce(torch.ones(1))
"""


def test_the_calls_of_ranks_that_wait_have_times_on_the_clock_of_the_run(starter: Starter, tmp_path: Path) -> None:
    """If it fails, the trace of a hang shows the calls at another time than the phases around them."""
    file = tmp_path / "events.jsonl"
    run_cases(starter, tmp_path, _SOURCE, f"--dist-events={file}")
    (case,) = gather([file]).runs[0].cases
    assert [ledger.rank for ledger in case.ledgers] == [0, 1]
    for ledger in case.ledgers:
        assert [call.is_done for call in ledger.calls] == [True, True, False]
        begins = [call.begin_s for call in ledger.calls if call.begin_s is not None]
        assert len(begins) == 3
        assert begins == sorted(begins)
        assert 0 < begins[0]
        assert begins[-1] < ledger.read_s < case.duration_s + 1
        # torch does not know when a call of gloo has ended.
        assert [call.end_s for call in ledger.calls] == [None] * 3
    picture = lanes(case)
    assert picture is not None
    titles = [call["title"] for lane in picture["lanes"] for call in lane["calls"]]
    assert len(titles) == 6
    assert titles[2].startswith("broadcast #3 of group 0")
