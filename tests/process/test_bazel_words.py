"""Texts of tests in the log, the files and the XML, including text that no encoding can represent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Bazel, run_cases
from tests.support.starter import Starter

# Part of a file name that is not text, as Python reads it, and a character that no file name can contain.
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
def test_reason_that_cannot_be_encoded_is_reported(bazel: Bazel, encoding: str | None, fresh: bool) -> None:
    """If this fails, a skip ends the run with a traceback and no XML, which Bazel takes for a failure."""
    target, ended = bazel.run(_SKIPS, env={"PYTHONIOENCODING": encoding}, fresh=fresh)
    assert ended.log.partition("\n")[0].endswith(f": EVERY CASE WAS SKIPPED: {_ODD}")
    assert target.xml()["test_skips"].outcome == "skipped"
    assert _ODD in target.warnings_file.read_text(encoding="utf-8")


def test_failure_that_cannot_be_encoded_is_reported(bazel: Bazel) -> None:
    """If this fails, a failure ends the run with a traceback and no XML."""
    target, ended = bazel.run(_FAILS, code=1)
    assert f"E       ValueError: {_ODD}" in ended.log.splitlines()
    assert target.xml()["test_fails"].outcome == "failure"


def test_report_keeps_its_lines_on_any_terminal(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a report is one long line: pytest escapes a whole text that it cannot write."""
    ended = run_cases(starter, tmp_path, _FAILS, "--dist-world-size=1")
    assert ended.code == 1, ended.log
    lines = ended.log.splitlines()
    assert "    @pytest.mark.distributed" in lines
    assert f"E       ValueError: {_ODD}" in lines


def test_workers_of_xdist_are_refused_with_the_way_out(bazel: Bazel) -> None:
    """If this fails, each case fails for a reason that is none: its worker does not know the fixture `world`."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    code = pytest.ExitCode.USAGE_ERROR
    _, ended = bazel.run("def test_never(world): ...\n", "-pxdist", "-n2", code=code)
    assert ended.log.splitlines()[0] == "dist_testing: //pkg:cases_gloo: gloo, world size 2, fork"
    assert "ERROR: //pkg:cases_gloo: -n (pytest-xdist) under Bazel.\n" in ended.log
    assert "set shard_count" in ended.log
