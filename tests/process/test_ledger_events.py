"""The collective ledger of ranks that wait for each other, as an event and as a picture of the report."""

from __future__ import annotations

from pathlib import Path

from dist_testing.core.events.cases import CaseAsked, RankLedgerRead
from dist_testing.core.events.file import read_events
from dist_testing.report.gather import gather
from dist_testing.report.pictures import lanes
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
    events = read_events(file)
    (asked,) = [event for event in events if isinstance(event, CaseAsked)]
    told = [event for event in events if isinstance(event, RankLedgerRead)]
    assert [event.rank for event in told] == [0, 1]
    for event in told:
        assert [call.is_done for call in event.calls] == [True, True, False]
        begins = [times.begin_s for times in event.times]
        known = [begin_s for begin_s in begins if begin_s is not None]
        assert len(known) == 3
        assert known == sorted(known)
        assert asked.at_s < known[0]
        assert known[-1] < event.at_s
        # torch does not know when a call of gloo has ended.
        assert [times.end_s for times in event.times] == [None] * 3
    (run,) = gather([file]).runs
    picture = lanes(run.cases[0])
    assert picture is not None
    assert "broadcast #3 of group 0" in picture
    assert picture.count('class="ph-collective"') == 6
