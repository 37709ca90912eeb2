"""The results of the bench of verdicts, kept between runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from figures import BenchError
from verdict_table.judge import Finding
from verdict_table.kept import Kept

_FINDING = Finding(
    verdict="failed",
    next_verdict="",
    seconds=0.5,
    at_limit=False,
    exits=True,
    blamed=(1, 2),
    told="report",
    cleanups=0,
    left={"rank": 2},
    files=(),
    wrong=("left",),
)


def test_a_run_continues_where_another_one_ended(tmp_path: Path) -> None:
    """If this fails, a busy machine costs all rows that were measured before."""
    path = tmp_path / "kept.json"
    first = Kept(path, limit_s=20)
    assert first.finding("a-sleep", "torch") is None
    first.add("a-sleep", "torch", _FINDING)
    first.add("a-sleep", "dist_testing", replace(_FINDING, seconds=None, wrong=()))
    again = Kept(path, limit_s=20)
    assert again.finding("a-sleep", "torch") == _FINDING
    newer = replace(_FINDING, seconds=0.25, left={})
    again.add("a-sleep", "torch", newer)
    last = Kept(path, limit_s=20)
    assert last.finding("a-sleep", "torch") == newer
    assert last.finding("a-sleep", "dist_testing") == replace(_FINDING, seconds=None, wrong=())
    assert last.finding("b-sleep", "torch") is None
    # A day, or two if the test ran at midnight.
    assert len(last.dates()) in (len("2026-11-23"), len("2026-11-22 to 2026-11-23"))


def test_results_of_other_limits_are_refused(tmp_path: Path) -> None:
    """If this fails, the page says that its rows have one limit, and they have two."""
    path = tmp_path / "kept.json"
    Kept(path, limit_s=20).add("a-sleep", "torch", _FINDING)
    with pytest.raises(BenchError, match="limit_s = 40, not 20"):
        Kept(path, limit_s=40)


@pytest.mark.parametrize("text", ["", "[]", '{"results": {}}', "null"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """If this fails, a file that was cut off is a traceback, or is written over."""
    path = tmp_path / "kept.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match=r"kept\.json"):
        Kept(path, limit_s=20)
    assert path.read_text(encoding="utf-8") == text
