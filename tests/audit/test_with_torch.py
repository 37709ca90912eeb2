"""The audit over suites on torch itself: this library's own has no hole, torch's classes have theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dist_testing.audit.findings import FAULTS
from tests.audit.audits import HARNESSES, audit, suite

pytestmark = pytest.mark.skipif(
    "DIST_TESTING_STRESS_CASES" not in os.environ,
    reason="starts some hundred interpreters that import torch; --config=stress runs it",
)

_OWN = ["-p", "dist_testing.core.pytest.plugin"]


def test_no_isolation_has_a_hole(tmp_path: Path) -> None:
    """All faults in all isolations that are processes, and in the front end of unittest."""
    done = audit(tmp_path, [], suite(*_OWN, HARNESSES / "own_suite.py"), with_torch=True)
    assert done.exit_status == 0, done.output
    assert len(done.found["cases"]) == 4
    for case in done.found["cases"]:
        assert [one["fault"] for one in case["faults"] if one["planted"]] == list(FAULTS), case


def test_own_threads_have_no_hole(tmp_path: Path) -> None:
    """Ranks that are threads do not take the harness with them."""
    command = suite(*_OWN, "--dist-backend=threaded", "--dist-isolation=thread", HARNESSES / "own_threads_suite.py")
    done = audit(tmp_path, [], command, with_torch=True)
    assert done.exit_status == 0, done.output
    assert done.case("test_threads")["world_size"] == 2


def test_models_with_torch_have_the_holes_that_they_have_without(tmp_path: Path) -> None:
    """The stand-in of torch, which ordinary runs use, hides and adds nothing."""
    names = ("process_wrappers", "unchecked", "subprocess")
    done = audit(
        tmp_path,
        ["--faults=raise,kill,skip"],
        suite(*[HARNESSES / f"{name}_suite.py" for name in names]),
        with_torch=True,
    )
    assert done.case("test_spawned")["holes"] == ["ran_nothing"], done.output
    assert done.holes("test_forked") == {"skip": ["green"]}
    assert done.holes("test_job") == {fault: ["green"] for fault in ("raise", "kill", "skip")}
    assert done.holes("test_script") == {"kill": ["green"]}
