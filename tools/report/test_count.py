"""The last line of CI, for all kinds of build events."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_COUNT = Path(__file__).parents[2] / ".ci" / "count.py"


def _count(tmp_path: Path, *events: dict[str, object]) -> tuple[int, str]:
    """Count on a machine with nothing installed; return the exit status and the last line."""
    file = tmp_path / "events.json"
    file.write_text("".join(f"{json.dumps(event, ensure_ascii=False)}\n" for event in events), encoding="utf-8")
    command = [sys.executable, "-I", "-S", str(_COUNT), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()[-1]


def _summary(label: str, **summary: str) -> dict[str, object]:
    return {"id": {"testSummary": {"label": label}}, "testSummary": summary}


_SKIPPED: dict[str, object] = {"id": {"targetCompleted": {"label": "//a:gpu"}}, "aborted": {"reason": "SKIPPED"}}
_LAST: dict[str, object] = {"id": {"progress": {}}, "lastMessage": True}


def test_targets_are_counted_by_their_status(tmp_path: Path) -> None:
    """A target without a status would end the count in a traceback, and CI would lack its last line."""
    summaries = [
        _summary("//a:good", overallStatus="PASSED"),
        _summary("//a:late", overallStatus="FLAKY"),
        _summary("//a:bad", overallStatus="FAILED"),
        _summary("//a:silent"),
    ]
    assert _count(tmp_path, *summaries, _SKIPPED, _LAST) == (0, "bazel: 2 passed, 2 failed, 1 skipped")


@pytest.mark.parametrize(
    ("events", "passed"), [([], 0), ([_LAST, {"no": "id"}], 0), ([_summary("//a:a", overallStatus="PASSED")], 1)]
)
def test_incomplete_events_are_counted_and_red(tmp_path: Path, events: list[dict[str, object]], passed: int) -> None:
    """A run that was killed half way would look like a small complete run."""
    assert _count(tmp_path, *events) == (1, f"bazel: {passed} passed, 0 failed, 0 skipped")
