"""Runs with other versions: the table tells what happened, and nothing that cannot be had looks like a pass."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import supported
from version_runs import cli, commands, environments, pythons, source_build, suites, table
from version_runs.errors import VersionsError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "evidence"
ENDED = commands.Ended(1, "", True)
XML = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_good"/>
<testcase classname="tests.unit.test_a" name="test_bad"><failure message="1 != 2&#10; | /home/x.py:7: more"/></testcase>
<testcase classname="tests.unit.test_a" name="test_worse"><error message="no fixture"/></testcase>
<testcase classname="tests.unit.test_a" name="test_gpu"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def pair(torch: str, python: str, **others: Any) -> dict[str, Any]:
    """Return a row of the table."""
    row: dict[str, Any] = {
        "torch": torch,
        "python": python,
        "oldest": False,
        "date": "2030-01-02",
        "machine": "Linux",
        "problem": None,
        "suites": {},
    }
    row |= {"build": f"{torch}.0", "python_full": f"{python}.1", "python_source": "this machine", "pytest": "9.2.0"}
    return row | others


def result(**others: Any) -> dict[str, Any]:
    """Return the result of a suite."""
    whole: dict[str, Any] = {"passed": 5, "failed": 0, "skipped": 1, "seconds": 9, "end": "whole", "failures": []}
    return whole | others


def test_the_page_is_made_of_the_file() -> None:
    """If this fails, the page shows other results than were found. The program writes both."""
    written = (DOCS / "versions_tried.md").read_text(encoding="utf-8")
    assert written == table.page(table.read(DOCS / "versions_tried.json"))


def test_the_promised_versions_are_those_of_the_table() -> None:
    """If this fails, the page promises other versions than the library checks. The program writes them."""
    versions = json.loads((ROOT / "dist_testing" / "versions.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    assert page == supported.with_table(page, versions)
    versions["torch"]["newest"] = "9.9"
    assert "| torch | 2.10 to 9.9;" in supported.with_table(page, versions)


def test_a_later_run_replaces_what_it_ran_and_keeps_the_rest() -> None:
    """If this fails, a run of one suite loses the others, or results of an old build or code pass as the new one's."""
    rows: dict[str, Any] = {"schema": 2, "pairs": [], "notes": []}
    table.add(rows, pair("2.12", "3.11", suites={"unit": result(), "compat": result()}))
    table.add(rows, pair("2.9", "3.14t", problem="no wheel"))
    table.add(rows, pair("2.12", "3.11", suites={"unit": result(passed=6)}))
    assert [row["torch"] for row in rows["pairs"]] == ["2.9", "2.12"]
    assert {name: suite["passed"] for name, suite in rows["pairs"][1]["suites"].items()} == {"unit": 6, "compat": 5}
    for changed in ({"build": "2.12.1"}, {"build": "2.12.1", "date": "2030-01-03"}):
        table.add(rows, pair("2.12", "3.11", **changed, suites={"unit": result()}))
        assert rows["pairs"][1]["suites"].keys() == {"unit"}
        table.add(rows, pair("2.12", "3.11", **changed, suites={"compat": result()}))
        assert rows["pairs"][1]["suites"].keys() == {"unit", "compat"}


def test_a_run_with_the_oldest_packages_has_a_row_of_its_own() -> None:
    """If this fails, its results stand in the place of those with the newest packages, or are mixed with them."""
    rows: dict[str, Any] = {"schema": 2, "pairs": [], "notes": []}
    table.add(rows, pair("2.12", "3.11", oldest=True, pytest="8.4.0", suites={"unit": result(passed=7)}))
    table.add(rows, pair("2.12", "3.11", suites={"compat": result()}))
    lines = [line for line in table.page(rows).splitlines() if line.startswith("| 2.12.0")]
    assert [line.split(" | ")[2:5] for line in lines] == [["9.2.0", "not run", "not run"], ["8.4.0", "7", "not run"]]


def test_the_oldest_packages_are_those_of_the_project() -> None:
    """If this fails, nothing shows that the library works with what pip may leave installed."""
    packages = environments.oldest_packages(ROOT)
    assert sorted(wish.partition("==")[0] for wish in packages) == ["bazel-runfiles", "psutil", "pytest"]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", wish) for wish in packages)


def test_nothing_that_did_not_run_looks_like_a_pass() -> None:
    """If this fails, a reader takes a stopped suite or a missing wheel for a result."""
    failures = [["tests.unit.test_a.test_bad", "assert <x> | y"]]
    runs = {"unit": result(failed=1, failures=failures), "process": result(end="stopped at its limit")}
    rows = [pair("2.12", "3.11", suites=runs), pair("2.12", "3.14t", problem="no interpreter | at all")]
    page = table.page({"schema": 2, "pairs": rows, "notes": ["A note."]})
    assert "| 2.12.0 | 3.11.1 (this machine) | 9.2.0 | 5, **1 failed** | not run |" in page
    assert " | not run | 5 (stopped at its limit) |" in page
    assert "`tests.unit.test_a.test_bad`: assert &lt;x> / y" in page
    assert "| 2.12 | 3.14t | no interpreter / at all | 2030-01-02 |" in page
    assert "- A note.\n" in page


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 3, "pairs": [], "notes": []}', '{"schema": 2}'])
def test_a_foreign_table_is_refused(text: str, tmp_path: Path) -> None:
    """If this fails, a damaged table is overwritten."""
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(VersionsError, match=r"is no table of schema 2\.\n.*\n.*"):
        table.read(tmp_path / "table.json")


def test_results_are_counted_with_the_way_they_ended(tmp_path: Path) -> None:
    """If this fails, a suite that crashed or was stopped counts as whole."""
    file = tmp_path / "unit.xml"
    file.write_text(XML)
    read = suites.read_results(file, ENDED, 3)
    assert (read.passed, read.failed, read.skipped, read.end) == (1, 2, 1, "whole")
    assert read.failures[0] == ("tests.unit.test_a.test_bad", "1 != 2 | x.py:7: more")
    assert suites.read_results(file, commands.Ended(2, "", False), 3).end == "stopped at its limit"
    crashed = commands.Ended(-11, "a\nSegmentation fault\n", True)
    assert suites.read_results(file, crashed, 3).end == "pytest ended with status -11: a Segmentation fault"
    missing = suites.read_results(tmp_path / "none.xml", commands.Ended(0, "", True), 3)
    assert (missing.passed, missing.end) == (0, "no result file")


def test_a_program_ends_at_its_limit_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a hang of one version stops the whole table, or leaves processes behind."""
    monkeypatch.setattr(commands, "_GRACE_S", 0.2)
    body = "import signal, subprocess, sys; signal.signal(2, signal.SIG_IGN); subprocess.run(['sleep', '600'])"
    ended = commands.run([sys.executable, "-c", body], 0.5)
    # Its output is read to the end, so that no child has the pipe any more.
    assert (ended.status, ended.in_time) == (-9, False)


def test_interpreters_are_asked_for_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a shim that does not work, or another version behind the name, is taken for the interpreter."""
    for name, answer in (("shim", "exit 127"), ("other", "echo 3.13 3.13.0"), ("right", "echo 3.12 3.12.9")):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "python3.12"
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", ":".join(str(tmp_path / name) for name in ("shim", "other", "right")))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    found = pythons.find("3.12", Path("uv"), tmp_path, Path("patchelf"))
    assert (found.program, found.full) == (tmp_path / "right/python3.12", "3.12.9")


def archive(place: Path, files: dict[str, str]) -> tuple[Path, source_build.Source]:
    """Make an archive with the sources of a program; return apt's folder that names it, and the sources."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"Python-9.8.7/{name}")
            entry.mode, entry.size = 0o755, len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    source = source_build.Source("9.8.7", hashlib.sha256(content.getvalue()).hexdigest())
    file = place / "archive" / source.path
    file.parent.mkdir(parents=True)
    file.write_bytes(content.getvalue())
    (place / "sources.list").write_text(f"deb file://{place}/archive sid main\n")
    return place, source


# A program that is "built" by copying, with the options that it got.
PROGRAM = {
    "configure": (
        '#!/bin/sh\necho \'#!/bin/sh\' > built\necho "echo $*" >> built\necho "PREFIX=${4#--prefix=}" > config.mk\n'
    ),
    "Makefile": (
        "include config.mk\nall:\n\techo >> ../made\naltinstall:\n\tmkdir -p $(PREFIX)/bin\n"
        "\tcp built $(PREFIX)/bin/python9.8t\n\tchmod +x $(PREFIX)/bin/python9.8t\n"
    ),
}


def test_python_without_the_gil_is_built_once(tmp_path: Path) -> None:
    """If this fails, such a Python is never tried, has a GIL, or costs five minutes for each torch."""
    etc_apt, source = archive(tmp_path, PROGRAM)
    program = source_build.built("9.8t", tmp_path / "kept", source, etc_apt)
    assert "--disable-gil" in commands.run([program], 10).log
    (tmp_path / "archive" / source.path).unlink()
    assert source_build.built("9.8t", tmp_path / "kept", source, etc_apt) == program
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["python9.8t-built"]


def test_sources_that_cannot_be_had_or_built_are_told(tmp_path: Path) -> None:
    """If this fails, changed sources run, a missing compiler is a traceback, or half a build passes as one."""
    etc_apt, source = archive(tmp_path, {**PROGRAM, "Makefile": "all:\n\techo no compiler; exit 7\n"})
    kept = tmp_path / "kept"
    for wrong, told in (
        (source, r"cannot be built\n.*'make --silent' ended with status 2: .*no compiler"),
        (source_build.Source("9.8.7", "0" * 64), r"does not give .* 9\.8\.7\n.* has sha256 \w+, expected 0{64}"),
        (source_build.Source("9.8.6", "0" * 64), r"does not give .* 9\.8\.6\n.*No such file"),
        (None, "its sources are not known"),
    ):
        with pytest.raises(VersionsError, match=told):
            source_build.built("9.8t", kept, wrong, etc_apt)
        assert not list(kept.glob("dist-build-*"))
    with pytest.raises(VersionsError, match=r"names no archive"):
        source_build.built("9.8t", kept, source, tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--pair=2.12"], "--pair=2.12 is not TORCH:PYTHON."),
        (["--pair=new:3.11"], "--pair=new:3.11 is not TORCH:PYTHON."),
        (["--suites=unit,all"], "there is no suite 'all'."),
    ],
)
def test_wrong_choices_are_told(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, a typing error costs half an hour of downloads."""
    assert cli.main(tmp_path, [*arguments, f"--folder={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"versions: error: {told}\n")
    assert len(error.splitlines()) == 3
