"""A plug-in of pytest for a run of chosen tests: notes their results. It imports nothing of the library.

`dist_testing.adopt` puts a copy of this file into a folder of its own, beside `chosen.json`: file -> ids of its tests.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_CHOSEN: dict[str, list[str]] = json.loads(Path(__file__).with_name("chosen.json").read_text(encoding="utf-8"))
_NOTES = Path(__file__).with_name("notes.jsonl")
_KEPT = ("__init__.py", "conftest.py")
# Ranks may be forks of this process, and workers of pytest-xdist leave the notes to the process that started them.
_PID = 0 if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the files without a chosen test."""
    is_other = collection_path.suffix == ".py" and collection_path.name not in _KEPT
    return True if is_other and str(collection_path) not in _CHOSEN else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all other tests."""
    chosen = {test for tests in _CHOSEN.values() for test in tests}
    left_out = [item for item in items if item.nodeid not in chosen]
    items[:] = [item for item in items if item.nodeid in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note that a test begins."""
    _note(nodeid, "", "", 0.0, "")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the result of a phase."""
    outcome: str = report.outcome if report.when == "call" or not report.failed else "error"
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.skipped else "xpassed"
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    _note(report.nodeid, report.when or "", outcome, report.duration, "" if report.passed else text)


def _note(test: str, phase: str, outcome: str, seconds: float, text: str) -> None:
    if os.getpid() == _PID:
        with _NOTES.open("a", encoding="utf-8") as notes:
            print(json.dumps([test, phase, outcome, seconds, text]), file=notes)
