"""`world.record` and `world.parity` on real ranks: numbers that hold, and that do not; runs that differ."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from dist_testing.report.compare import compare, compare_lines
from dist_testing.report.facts import numbers_of
from dist_testing.report.gather import gather
from dist_testing.report.page import page
from tests.support.children import run_cases
from tests.support.starter import Starter

_NUMBERS = """
    import os
    import pytest

    NOW = "NOW" in os.environ

    @pytest.mark.distributed
    @pytest.mark.parametrize(
        ("better", "values", "now"),
        [
            ("higher", (10, 12), (9.5, 12)),
            ("higher", (10, 12), (10, 8)),
            ("lower", (10, 12), (13, 20)),
            ("lower", (10, 12), (1, 2)),
            ("same", (5, 5), (5, 5.25)),
            ("same", (5, 5), (5, 6)),
        ],
    )
    def test_value(world, better, values, now):
        world.record("speed", (now if NOW else values)[world.rank], "GB/s", better=better, within=0.1)
        world.record("told", world.rank)

    @pytest.mark.distributed
    def test_unit(world):
        world.record("speed", 1, "MB/s" if NOW else "GB/s", within=0.1)

    @pytest.mark.distributed
    def test_name(world):
        world.record("speeds" if NOW else "speed", 1, within=0.1)

    @pytest.mark.distributed
    def test_dropped(world):
        if not NOW:
            world.record("speed", 1)

    @pytest.mark.distributed
    def test_wrong(world):
        world.record("loss", 1)
        with pytest.raises(Exception, match=r"recorded before\\.\\n.+\\n.+$"):
            world.record("loss", 2)
        world.barrier()
        if world.rank == 0:
            world.record("unit", 1, "s")
        world.barrier()
        if world.rank == 1:
            with pytest.raises(Exception, match=r"unit 'ms'.*; rank 0 has unit 's'"):
                world.record("unit", 1, "ms")
"""


def _values(better: str, number: int) -> str:
    return f"test_value[{better}-values{number}-now{number}]"


def test_numbers_hold_or_fail_their_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a slower collective passes, or a number that nobody compares any more goes unseen."""
    size = "--dist-world-size=2"
    none = run_cases(starter, tmp_path, _NUMBERS, size, "-k", "unit or wrong")
    assert none.outcomes() == {"test_unit": "FAILED", "test_wrong": "PASSED"}, none.log
    assert "within = 0.1, and no base.\nThe run has no --dist-numbers.\n--dist-numbers-update=numbers.json" in none.log

    writing = ("--dist-numbers-update=numbers.json", "--dist-events=before.jsonl")
    first = run_cases(starter, tmp_path, _NUMBERS, size, *writing)
    assert first.code == 0, first.log
    written = json.loads((tmp_path / "numbers.json").read_text())
    values = {base["case"].rpartition(".")[2]: base["value"] for base in written["numbers"] if base["name"] == "speed"}
    # The worst of the ranks; of numbers that must be the same, the middle one.
    assert sorted(values.values()) == [1, 1, 1, 5, 5, 10, 10, 12, 12]

    comparing = ("--dist-numbers=numbers.json", "--junitxml=now.xml", "--dist-events=now.jsonl")
    now = run_cases(starter, tmp_path, _NUMBERS, size, *comparing, NOW="1")
    now.check(
        passed=f"{_values('higher', 0)} {_values('lower', 3)} {_values('same', 4)} test_wrong",
        failed=f"{_values('higher', 1)} {_values('lower', 2)} {_values('same', 5)} test_unit test_name test_dropped",
    )
    for said in (
        "speed = 8 GB/s on rank 1 is worse than the base 10 by 20.0%, and not within 10.0% (1 of 2 ranks are worse; "
        "min 8, median 9, max 10)",
        "speed = 20 GB/s on rank 1 is worse than the base 12 by 66.7%",
        "speed = 6 GB/s on rank 1 is worse than the base 5 by 20.0%",
        "unit 'MB/s', better 'higher'; the base has 'GB/s', 'higher'.\n",
        "no base in numbers.json.\nIt has none for this case on gloo, ",
        "no rank has recorded speed, which has a base in numbers.json",
    ):
        assert said in now.log, now.log
    cases = ElementTree.parse(tmp_path / "now.xml").iter("testcase")
    (slow,) = (case for case in cases if case.get("name") == "test_value[higher-values1-now1]")
    properties = {one.get("name"): str(one.get("value")) for one in slow.iter("property")}
    assert json.loads(properties["number.speed"]) == {
        "unit": "GB/s",
        "better": "higher",
        "min": 8.0,
        "median": 9.0,
        "max": 10.0,
        "base": 10.0,
        "within": 0.1,
        "ranks": {"0": 10.0, "1": 8.0},
    }
    before, after = gather([tmp_path / "before.jsonl"]), gather([tmp_path / "now.jsonl"])
    assert any(one.name == "speed" and one.summary.max == 10.0 for one in numbers_of(after))
    changed = compare(before, after)
    assert any(line.endswith("speed: 11 GB/s -> 9 GB/s") for line in compare_lines(changed))
    html = page(after, made_wall_s=0.0, changed=(changed, "before"))
    assert "Numbers that have moved by 5 % or more" in html
    assert "<h2>Numbers (" in html


_PARITY = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    def train(group, broken=None, rank=0):
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.randn(8, 4)
        for step in range(4):
            loss = model(batch.chunk(group.size())[group.rank()]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= group.size()
            if step == broken and group.size() > 1 and rank == dist.get_rank():
                model.weight.grad.zero_()
            optimizer.step()
            loss = loss.detach()
            dist.all_reduce(loss, group=group)
            yield {"loss": loss / group.size(), "model": model.state_dict()}

    @pytest.mark.distributed
    def test_same(world):
        before = torch.get_rng_state()
        world.parity(train, rtol=1e-4)
        world.parity(lambda group: torch.ones(1))
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.distributed(isolation="pool")
    def test_pool(world):
        world.parity(train, rtol=1e-4)

    @pytest.mark.distributed
    def test_broken(world):
        world.parity(lambda group: train(group, broken=2, rank=1), rtol=1e-4)

    @pytest.mark.distributed
    def test_alone(world):
        def fails(group):
            assert group.size() > 1, "one rank"

        world.parity(fails)

    @pytest.mark.distributed
    def test_nothing(world):
        world.parity(lambda group: ({"loss": loss} for loss in []))

    @pytest.mark.distributed
    def test_other_group(world):
        world.parity(lambda group: dist.all_reduce(torch.ones(1)))
"""


def test_runs_on_one_rank_and_on_all(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a parallel training that computes something else passes, or the wrong rank is blamed."""
    ended = run_cases(starter, tmp_path, _PARITY, "--dist-world-size=2")
    ended.check(passed="test_same test_pool", failed="test_broken test_alone test_nothing test_other_group")
    broken = ended.failures()["test_broken"]
    assert (
        "(world of 2): rank 1 raised AssertionError: world.parity: step 2, rank 1: ['model']['weight'] differs"
        in broken
    )
    assert "Steps 0 to 1 agree; rank(s) 0 differ in this step or later." in broken
    alone = ended.failures()["test_alone"]
    assert "rank 0 raised AssertionError: one rank" in alone
    assert "It is from the run of world.parity on rank 0 alone." in alone
    assert "UsageError: world.parity: the function has yielded or returned no" in ended.failures()["test_nothing"]
    # The commonest mistake is proven, and not a wait for the deadline that blames rank 1.
    wait = r"ranks 0, 1 wait for each other: rank 0 in all_reduce #1 of the default group \S+; rank 1 in world.barrier"
    assert re.search(wait, ended.failures()["test_other_group"]), ended.log


_THREADS = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.distributed
    def test_parity(world):
        def summed(group):
            part = torch.arange(8.0).chunk(group.size())[group.rank()].sum()
            dist.all_reduce(part, group=group)
            return part

        world.parity(summed)
        said = r"^world.record\\('x', 1\\) on rank \\d: not possible here\\.\\n.+\\n.+$"
        with pytest.raises(Exception, match=said):
            world.record("x", 1)
"""


def test_ranks_that_are_threads(starter: Starter, tmp_path: Path) -> None:
    """If this fails, parity is refused where it asks no runner, or a number is lost without an error."""
    ended = run_cases(starter, tmp_path, _THREADS, "--dist-world-size=2", "--dist-backend=threaded")
    assert ended.outcomes() == {"test_parity": "PASSED"}, ended.log
