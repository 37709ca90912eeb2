"""`-p dist_testing.adopt.elastic`: a suite that calls torchrun's agent in its tests, unchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.starter import Child, Starter

_SUITE = Path(__file__).with_name("elastic_suite.py")


def _run(starters: Starter, folder: Path, start_method: str, *options: str) -> tuple[Child, dict[str, list[Any]]]:
    """Run the suite, and return what its tests have seen, by name."""
    shutil.copy(_SUITE, folder / "test_suite.py")
    seen = folder / "seen"
    # A rank returns a tensor through a socket, whose path must be short.
    env = {"SEEN": str(seen), "START_METHOD": start_method, "TMPDIR": "/tmp"}
    child = starters.start(["-m", "pytest", "-rA", *options, "test_suite.py"], folder, env=env)
    # Each of its tests starts several interpreters with torch.
    assert child.wait(600) == 1, child.log
    notes: dict[str, list[Any]] = {}
    for line in seen.read_text(encoding="utf-8").splitlines():
        name, note = json.loads(line)
        notes.setdefault(name, []).append(note)
    return child, notes


@pytest.fixture(scope="module")
def both(starters: Starter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Child, dict[str, list[Any]]]]:
    """Run the suite under torch's agent and with the adapter."""
    # Ranks that torch's agent forks can end by SIGSEGV: they collect garbage of the process that forked them.
    own = _run(starters, tmp_path_factory.mktemp("own"), "spawn", "-k", "not hole")
    adapted = _run(starters, tmp_path_factory.mktemp("adapted"), "fork", "-p", "dist_testing.adopt.elastic")
    starters.wait_nothing_left(10.0)
    return {"own": own, "adapted": adapted}


def test_tests_see_what_they_see_under_torchs_agent(both: dict[str, tuple[Child, dict[str, list[Any]]]]) -> None:
    """If this fails, values, environments, restarts or exceptions differ from those of torch's agent."""
    (child, own), (_, adapted) = both["own"], both["adapted"]
    assert set(own) > {"environment", "values", "error", "exit", "signal", "restart", "nodes"}, child.log
    assert adapted == own


def test_what_is_wrong_fails(both: dict[str, tuple[Child, dict[str, list[Any]]]]) -> None:
    """If this fails, a test passes or hangs although a rank has failed, waits for ever or leaves a process behind."""
    log = both["adapted"][0].log
    failed = [line.split(" - ")[0].rpartition("::")[2] for line in log.splitlines() if line.startswith("FAILED ")]
    assert failed == ["test_fails", "test_hole_leak", "test_hole_hang", "test_hole_exit_0"], log
    assert "rank 1 raised ValueError: planted" in log
    assert "restart 1 of 3" not in log, "a hang would come again"
    assert "rank 0 exited with code 0" in log
    assert "restart 1 of 1: rank 1 raised ValueError: planted in the first attempt" in log


@pytest.mark.parametrize(
    "why",
    [
        "it has min_nodes=1 and max_nodes=2",
        "it starts a command",
        "its logs_specs redirect the output",
    ],
)
def test_what_only_the_agent_can_do_is_left_to_it(
    both: dict[str, tuple[Child, dict[str, list[Any]]]], why: str
) -> None:
    """If this fails, a configuration that the engine does not have is ignored, or left to the agent without a word."""
    log = both["adapted"][0].log
    assert f"torch's own agent runs it, because {why}" in log
    assert log.count("torch's own agent runs it") == 3
