"""`-p dist_testing.adopt.elastic`: a suite that calls torchrun's agent in its tests, unchanged."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from tests.support.children import Ended
from tests.support.starter import Starter


def _run(starter: Starter, folder: Path, start_method: str, *options: str) -> tuple[Ended, list[Any]]:
    """Run the suite, and return what its tests have seen."""
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("elastic_suite.py"), folder / "test_suite.py")
    seen = folder / "seen"
    # A rank returns a tensor through a socket, whose path must be short.
    env = {"SEEN": str(seen), "START_METHOD": start_method, "TMPDIR": "/tmp"}
    child = starter.start(["-m", "pytest", "-rA", *options, "test_suite.py"], folder, env=env)
    # Under torch's agent, each test loads torch in its ranks.
    assert child.wait(600.0) == 1, child.log
    return Ended(1, child.log), list(map(json.loads, seen.read_text(encoding="utf-8").splitlines()))


def test_a_suite_sees_what_it_sees_under_torchs_agent_except_its_holes(starter: Starter, tmp_path: Path) -> None:
    """If this fails, values, environments, restarts or exceptions differ, or a failed rank or a hang passes."""
    # Ranks that torch's agent forks can end by SIGSEGV: they collect garbage of the process that forked them.
    own, seen = _run(starter, tmp_path / "own", "spawn", "-k", "not hole")
    adapted, seen_adapted = _run(starter, tmp_path / "adapted", "fork", "-p", "dist_testing.adopt.elastic")
    starter.wait_nothing_left(10.0)
    assert {name for name, _ in seen} > {"environment", "values", "raises", "exits", "dies", "restart", "nodes"}, (
        own.log
    )
    assert seen_adapted == seen, own.log
    holes = {"test_hole_leak", "test_hole_hang", "test_hole_exit_0"}
    assert adapted.outcomes() == own.outcomes() | dict.fromkeys(holes, "FAILED"), adapted.log
    log = adapted.log
    assert "rank 1 raised ValueError: planted" in log
    assert "restart 1 of 3" not in log, "a hang would come again"
    assert "rank 0 exited with code 0" in log
    assert "restart 1 of 1: rank 1 raised ValueError: planted in the first attempt" in log
    # What only the agent can do is left to it, and never without a word.
    left = re.findall("torch's own agent runs it, because (it has .*|it starts .*|its .*)", log)
    assert sorted(left) == [
        "it has min_nodes=1 and max_nodes=2",
        "it starts a command",
        "its logs_specs redirect the output",
    ]
