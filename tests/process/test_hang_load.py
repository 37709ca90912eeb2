"""The rank that a hang comes from is named every time, with short limits and while all CPUs are busy."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.outcomes import Cause
from tests.support.worlds import engine_for, run

# Small and without load, for every run; a stress run repeats each case, with more busy processes than CPUs.
_STRESS = int(os.environ.get("DIST_TESTING_STRESS_CASES", "0"))
_ROUNDS = min(50, _STRESS) or 1
_BUSY = 2 * (os.cpu_count() or 1) if _STRESS else 0


def _returns_early(world: World, _: dict[str, Any]) -> None:
    if world.rank != 3:
        dist.all_reduce(torch.ones(3))


def _calls_another(world: World, _: dict[str, Any]) -> None:
    if world.rank == 3:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(3))


def _one_skips(world: World, _: dict[str, Any]) -> None:
    if world.rank == 3:
        raise unittest.SkipTest("not today")
    dist.all_reduce(torch.ones(3))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all cases."""
    with contextlib.ExitStack() as stack:
        for _ in range(_BUSY):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        functions = {function.__name__: function for function in (_returns_early, _calls_another, _one_skips)}
        yield stack.enter_context(engine_for(functions))


# The shortest limit leaves the least time. `test_hang_proof` has one of each kind in every run.
_CASES = [
    ("_returns_early", 3, "rank 3 ended the test; ranks 0, 1, 2 wait for it"),
    ("_returns_early", 10, "rank 3 ended the test; ranks 0, 1, 2 wait for it"),
    ("_returns_early", 20, "rank 3 ended the test; ranks 0, 1, 2 wait for it"),
    ("_calls_another", 10, "rank 3 calls barrier"),
    ("_one_skips", 20, "rank 3 skipped: not today; ranks 0, 1, 2 wait for it"),
]


@pytest.mark.parametrize(("function", "limit_s", "said"), _CASES if _STRESS else _CASES[:1])
def test_right_rank_every_time(engine: Engine, function: str, limit_s: float, said: str) -> None:
    """If this fails, a report blames an innocent rank whenever the machine is busy."""
    wrong = []
    for _ in range(_ROUNDS):
        result = run(engine, function, timeout_s=limit_s)
        culprit = None if function == "_one_skips" else 3
        if said not in result.verdict.reason or result.verdict.culprit != culprit:
            wrong.append(failure_report(result))
        assert result.verdict.cause is (Cause.DISAGREEMENT if function == "_one_skips" else Cause.HANG)
    assert not wrong, f"{len(wrong)} of {_ROUNDS}:\n{wrong[0]}"
