"""The merge of several coverage reports."""

from __future__ import annotations

from pathlib import Path

import merge_lcov
import pytest

FIRST = """\
SF:a.py
FN:1,3,f
FNDA:1,f
BRDA:2,0,jump to line 3,1
BRDA:2,0,exit,0
BRDA:5,0,exit,-
DA:1,1
DA:2,1,checksum
DA:3,0
LF:3
LH:2
end_of_record
SF:tools/not_wanted.py
DA:1,1
end_of_record
"""
SECOND = """\
SF:virtual/a.py
FN:1,3,f
FNDA:2,f
BRDA:2,0,exit,-
DA:2,2
DA:3,1
end_of_record
SF:/usr/lib/python3/x.py
DA:1,1
end_of_record
"""
MERGED = """\
SF:a.py
FN:1,3,f
FNDA:3,f
FNF:1
FNH:1
BRDA:2,0,jump to line 3,1
BRDA:2,0,exit,0
BRDA:5,0,exit,-
BRF:3
BRH:1
DA:1,1
DA:2,3
DA:3,1
LH:3
LF:3
end_of_record
"""


def _run(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str, reports: str = "") -> tuple[int, Path]:
    output = folder / "_coverage.dat"
    where = f"--reports_file={reports}" if reports else f"--coverage_dir={folder}"
    monkeypatch.setattr("sys.argv", ["merge_lcov", where, f"--output_file={output}", *options])
    return merge_lcov.main(), output


def test_counts_of_all_reports_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The runner writes one report, and a coverage tool of the Python toolchain writes another."""
    (tmp_path / "more").mkdir()
    (tmp_path / "first.dat").write_text(FIRST, encoding="utf-8")
    (tmp_path / "more" / "second.dat").write_text(SECOND, encoding="utf-8")
    (tmp_path / "_coverage.dat").touch()
    manifest = tmp_path / "manifest"
    manifest.write_text("a.py\n/usr/lib/python3/x.py\n", encoding="utf-8")
    # Bazel passes it if a C++ library changes the paths of its headers.
    renamed = tmp_path / "renamed"
    renamed.write_text("virtual/a.py:a.py\n", encoding="utf-8")
    options = (f"--source_file_manifest={manifest}", f"--sources_to_replace_file={renamed}")
    code, output = _run(monkeypatch, tmp_path, *options, "--filter_sources=/usr/lib/.+")
    assert code == 0
    assert output.read_text(encoding="utf-8") == MERGED


def test_a_damaged_report_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a part of the coverage would silently be missing."""
    (tmp_path / "cut.dat").write_text("SF:a.py\nDA:1", encoding="utf-8")
    code, _ = _run(monkeypatch, tmp_path)
    assert code == 1
    text = capsys.readouterr().err
    assert "cut.dat" in text
    assert len(text.splitlines()) == 3
