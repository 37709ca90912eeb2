"""A suite in the style of Lightning's standalone tests, on a small model of its harness (`standalone_harness.py`).

Its own harness is `PL_RUN_STANDALONE_TESTS=1 python -m pytest -p standalone_harness <file>::<test>` for each test.
"""

# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from standalone_harness import Launcher, RunIf

STATE: list[str] = []


@pytest.fixture(scope="module")
def resource() -> Any:
    yield STATE
    STATE.clear()


def _all_reduce(rank: int, size: int) -> None:
    value = torch.full((2,), float(rank + 1))
    dist.all_reduce(value)
    assert value[0].item() == size * (size + 1) / 2
    assert os.environ["WORLD_SIZE"] == str(size)
    assert os.environ["LOCAL_RANK"] == str(rank)


def test_not_standalone() -> None:
    raise AssertionError("this test belongs to another run")


@RunIf(standalone=True)
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_all_reduce(devices: int, tmp_path: Path, resource: list[str]) -> None:
    assert not resource
    resource.append("each test has a process of its own")
    (tmp_path / "file").touch(exist_ok=False)
    Launcher(devices).launch(_all_reduce, devices)


@RunIf(standalone=True)
def test_without_ranks(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("LEAKED", "1")
    print("seen")
    assert capsys.readouterr().out == "seen\n"
    assert not STATE
    assert subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode == 3


@RunIf(standalone=True)
def test_skips() -> None:
    pytest.skip("in the test")


@RunIf(min_gpus=2, standalone=True)
def test_needs_gpus() -> None:
    raise AssertionError


@RunIf(standalone=True)
@pytest.mark.xfail(strict=True)
def test_expected() -> None:
    Launcher(2).launch(_fails_on, 0)


@RunIf(standalone=True)
@pytest.mark.xfail(strict=True)
def test_expected_passes() -> None:
    Launcher(1).launch(_all_reduce, 1)


def _fails_on(rank: int, failing: int) -> None:
    assert rank != failing, "planted"
    if failing >= 0:
        dist.barrier()


@RunIf(standalone=True)
@pytest.mark.parametrize("failing", [0, 1])
def test_fails(failing: int) -> None:
    Launcher(2).launch(_fails_on, failing)


def _dies(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()


@RunIf(standalone=True)
def test_dies() -> None:
    Launcher(2).launch(_dies)


# From here on: a hole of the own harness, under which it passes.


def _fails_late(rank: int) -> None:
    assert rank == 0, "planted late"


@RunIf(standalone=True)
def test_hole_unobserved_rank() -> None:
    Launcher(2, observes=False).launch(_fails_late)
