"""The parts of the checklist that can be tested without GPUs."""

from __future__ import annotations

from pathlib import Path

import checklist
import pytest

from dist_testing.gpus.simulated import NODES_VARIABLE


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of simulated GPUs."""
    monkeypatch.setenv(NODES_VARIABLE, str(tmp_path))
    monkeypatch.setenv("DIST_TESTING_NVML", "/no/such/library")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def test_without_a_gpu_nothing_is_claimed(nodes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checklist that is green because it ran nothing is worse than none."""
    assert checklist.main([]) == 1
    assert "no GPU here" in capsys.readouterr().err


def test_a_step_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a typing mistake would run nothing."""
    with pytest.raises(SystemExit):
        checklist.main(["--only=listign"])
    assert "'listign'" in capsys.readouterr().err


def test_a_step_is_good_only_if_it_ends_as_expected(nodes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With simulated nodes GPUs are found, but no rank can compute on one."""
    for name in ("nvidiactl", "nvidia0"):
        (nodes / name).touch()
    assert checklist.main(["--only=listing"]) == 0
    assert "1 of 1 steps" in capsys.readouterr().out
    step = checklist.Step("bad", "an exit code", ["-c", "print('said')"], code=3)
    assert not checklist._run(step)
    step = checklist.Step("bad", "a text", ["-c", "print('said')"], output="something else")
    assert not checklist._run(step)
    assert "BAD: exit code 0" in capsys.readouterr().out
