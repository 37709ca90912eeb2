"""What tests say, where it meets the log, the files and the XML: also what no encoding has bytes for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Target, run_cases
from tests.support.starter import Starter

# Of the name of a file that is no text, as Python reads it, and of one that nothing can be.
_ODD = r"no such data: /data/\udce9t\ud800.bin"

_SKIPS = f"""
    import pytest


    @pytest.mark.distributed
    def test_skips(world):
        pytest.skip("{_ODD}")
"""

_FAILS = f"""
    import pytest


    @pytest.mark.distributed
    def test_fails(world):
        raise ValueError("{_ODD}")
"""


@pytest.mark.parametrize(
    ("encoding", "fresh"), [(None, False), ("ascii:strict", True)], ids=["of the machine", "ASCII"]
)
def test_reason_that_cannot_be_encoded_is_a_reason(
    starter: Starter, tmp_path: Path, encoding: str | None, fresh: bool
) -> None:
    """The run would end with a traceback and without an XML: a skip that Bazel takes for a failure."""
    target = Target(tmp_path, {"test_cases.py": _SKIPS})
    ended = target.run(starter, env={"PYTHONIOENCODING": encoding}, fresh=fresh)
    assert ended.code == 0, ended.log
    assert ended.log.partition("\n")[0].endswith(f": EVERY CASE WAS SKIPPED: {_ODD}")
    assert target.xml()["test_skips"].outcome == "skipped"
    assert _ODD in target.warnings_file.read_text(encoding="utf-8")


def test_failure_that_cannot_be_encoded_is_a_failure(starter: Starter, tmp_path: Path) -> None:
    """As above, of the report."""
    target = Target(tmp_path, {"test_cases.py": _FAILS})
    ended = target.run(starter)
    assert ended.code == 1, ended.log
    assert f"E       ValueError: {_ODD}" in ended.log.splitlines()
    assert target.xml()["test_fails"].outcome == "failure"


def test_report_keeps_its_lines_on_any_terminal(starter: Starter, tmp_path: Path) -> None:
    """pytest escapes what it cannot write: all of it, so that a report would be one long line."""
    ended = run_cases(starter, tmp_path, _FAILS, "--dist-world-size=1")
    assert ended.code == 1, ended.log
    lines = ended.log.splitlines()
    assert "    @pytest.mark.distributed" in lines
    assert f"E       ValueError: {_ODD}" in lines
