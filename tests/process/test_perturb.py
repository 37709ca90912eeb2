"""Delays by a seed: they find a race, are told, and are repeated; a correct test passes whatever is delayed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.events.event import WorldEnded
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.outcomes import Status
from dist_testing.perturb.plan import Plan
from tests.support.children import run_cases, run_pytest, write_file
from tests.support.races import RACES
from tests.support.random_programs import program, run_correct
from tests.support.starter import Starter
from tests.support.worlds import engine_for, run

# Of delays alone, so that the machine decides nothing: a rank notes each sleep.
_SOURCE = """
    import time
    import pytest
    import torch
    import torch.distributed as dist

    _slept = []
    _sleep = time.sleep

    def _note(seconds):
        _slept.append(seconds)
        _sleep(seconds)

    @pytest.mark.distributed(world_size=3)
    def test_race(world, monkeypatch):
        monkeypatch.setattr(time, "sleep", _note)
        for _ in range(4):
            dist.all_reduce(torch.ones(3))
        dist.barrier()
        slept = [None] * 3
        dist.all_gather_object(slept, max(_slept, default=0))
        # Rank 2 is slow, and rank 0 is not.
        assert not (slept[2] >= 0.1 > slept[0]), "planted"

    @pytest.mark.distributed(world_size=2)
    def test_always(world):
        dist.barrier()
        assert world.rank != 1

    @pytest.mark.distributed(world_size=2)
    def test_never(world):
        dist.barrier()

    @pytest.mark.distributed(world_size=2, perturb="5:1.1")
    def test_marker(world):
        dist.barrier()
        assert world.rank != 1

    class TestPool:
        @pytest.mark.distributed(world_size=2, isolation="pool", perturb=3)
        @pytest.mark.parametrize("number", range(3))
        def test_pool(self, world, number):
            dist.barrier()
"""
# A small part for every run; a stress run sets a thousand.
_STRESS = int(os.environ.get("DIST_TESTING_STRESS_CASES", "0"))


def test_race_is_found_and_repeated(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a race stays a mystery of CI: the seed does not show it, or its delays do not repeat it."""
    ended = run_cases(starter, tmp_path, _SOURCE, "--dist-perturb=1", "--dist-repeat=50", "-k", "race")
    assert ended.outcomes() == {"test_race": "FAILED"}, ended.log
    assert "It passes without a delay, and fails with these" in ended.log
    told = re.search(
        r"^Delays of --dist-perturb=(\d+:2\.\d): rank 2 waited 100 ms before \w+ \(test_cases.py:\d+\)",
        ended.log,
        re.MULTILINE,
    )
    assert told, ended.log
    again = run_cases(starter, tmp_path, _SOURCE, f"--dist-perturb={told[1]}", "-k", "race")
    assert again.outcomes() == {"test_race": "FAILED"}
    assert f"Delays of --dist-perturb={told[1]}: " in again.log


def test_what_does_not_depend_on_delays(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a user looks for a race that is none."""
    ended = run_cases(starter, tmp_path, _SOURCE, "--dist-perturb=2", "--dist-repeat=3", "-k", "always or never")
    assert ended.outcomes() == {"test_always": "FAILED", "test_never": "PASSED"}, ended.log
    # A seed that delays no rank shows the same by itself.
    assert "fails without any delay, too" in ended.log or "Delays of --dist-perturb=2:: none" in ended.log


def test_marker_and_pool(starter: Starter, tmp_path: Path) -> None:
    """A setting of one test; the ranks of a pool count the calls of each case."""
    ended = run_cases(starter, tmp_path, _SOURCE, "-k", "marker or pool")
    ended.check(failed="test_marker", passed="test_pool[0] test_pool[1] test_pool[2]")


def test_planted_races_are_found(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a race that two hundred runs do not show is found only by chance."""
    write_file(tmp_path, "test_cases.py", RACES)
    if _STRESS:
        for _ in range(_STRESS // 5):
            ended = run_pytest(starter, tmp_path, "test_cases.py")
            assert ended.code == 0, ended.log
    ended = run_pytest(starter, tmp_path, "-rA", "--dist-perturb=1", "--dist-repeat=50", "test_cases.py")
    assert set(ended.outcomes().values()) == {"FAILED"}, ended.log
    print(*re.findall(r"^Delays of .*", ended.log, re.MULTILINE), sep="\n")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all programs."""
    with engine_for({"correct": run_correct}) as engine:
        yield engine


def test_correct_programs_pass_with_delays(engine: Engine) -> None:
    """A false failure would be worse than a race that is not found."""
    for seed in range(_STRESS or 12):
        result = run(
            engine,
            "correct",
            world_size=program(seed).size,
            timeout_s=60.0,
            arguments={"seeds": [seed]},
            settings={"perturb": Plan(seed)},
        )
        assert result.verdict.status is Status.PASSED, f"seed {seed}: {failure_report(result)}"


@pytest.mark.parametrize(("cases_after", "runs"), [(0, 3), (10**9, 1)])
def test_runs_end_with_the_part_of_the_time(engine: Engine, cases_after: int, runs: int) -> None:
    """If this fails, `--config=perturb` fails good targets: their time is over before each case has run 20 times."""
    ended: list[object] = []
    engine.events.subscribe(ended.append, WorldEnded, name="the test")
    engine.budget, engine.cases_after = Budget(time.monotonic() + 3600), cases_after
    result = run(
        engine, "correct", world_size=program(1).size, arguments={"seeds": [1]}, settings={"perturb": Plan(1, 3)}
    )
    assert result.verdict.status is Status.PASSED, failure_report(result)
    assert len(ended) == runs
