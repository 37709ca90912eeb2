"""Timings from results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timings

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.bazel.timings import read_timings
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import CaseRecord, Status


def _run(folder: Path, number: int, seconds: dict[str, float], outcome: Status = "passed") -> None:
    path = folder / "testlogs" / "a" / f"run_{number}_of_9" / "test.xml"
    path.parent.mkdir(parents=True)
    write_xml(path, "//a:a", [CaseRecord(f"a.{name}", outcome, duration_s=value) for name, value in seconds.items()])


def _main(folder: Path, *options: str) -> dict[str, dict[str, float]]:
    out = folder / "timings.json"
    assert timings.main([f"--out={out}", *options, str(folder / "testlogs")]) == 0
    found: dict[str, dict[str, float]] = json.loads(out.read_text(encoding="utf-8"))["targets"]
    return found


def test_the_median_of_several_runs_counts(tmp_path: Path) -> None:
    """One run on a busy machine can be far off."""
    for number, seconds in enumerate([1.0, 30.0, 2.0]):
        _run(tmp_path, number, {"test_x[1]": seconds})
    assert _main(tmp_path) == {"//a:a": {"a.test_x[1]": 2.0}}


def test_only_cases_that_passed_count(tmp_path: Path) -> None:
    """A failure may take no time at all, or run until the timeout."""
    _run(tmp_path, 1, {"x": 1.0})
    _run(tmp_path, 2, {"x": 300.0, "y": 1.0}, "failed")
    _run(tmp_path, 3, {"x": 0.0}, "skipped")
    assert _main(tmp_path) == {"//a:a": {"a.x": 1.0}}


def test_a_case_without_a_time_was_not_measured(tmp_path: Path) -> None:
    """Other test runners leave the time out, and a timing that is not a number would break every shard."""
    path = tmp_path / "testlogs" / "a" / "test.xml"
    path.parent.mkdir(parents=True)
    cases = '<testcase classname="a" name="x"/><testcase classname="a" name="y" time="2"/>'
    path.write_text(f'<testsuite name="//a:a">{cases}</testsuite>', encoding="utf-8")
    assert _main(tmp_path) == {"//a:a": {"a.y": 2.0}}


def test_old_timings_stay_unless_the_file_is_made_anew(tmp_path: Path) -> None:
    """A run of some targets must not remove the timings of the others."""
    old = {"schema": 1, "targets": {"//b:b": {"b.z": 3.0}, "//a:a": {"a.x": 9.0, "a.other": 4.0}}}
    (tmp_path / "timings.json").write_text(json.dumps(old), encoding="utf-8")
    _run(tmp_path, 1, {"x": 1.0})
    assert _main(tmp_path) == {"//a:a": {"a.other": 4.0, "a.x": 1.0}, "//b:b": {"b.z": 3.0}}
    assert _main(tmp_path, "--anew") == {"//a:a": {"a.x": 1.0}}


def test_relative_paths_are_those_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bazel run` starts programs in another folder."""
    _run(tmp_path, 1, {"x": 1.0})
    (tmp_path / "testlogs").rename(tmp_path / "bazel-testlogs")
    # The program changes the folder; afterwards it must be the old one again.
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(tmp_path))
    assert timings.main(["--out=timings.json"]) == 0
    assert (tmp_path / "timings.json").exists()


@pytest.mark.parametrize("broken", ["timings.json", "testlogs/a/run_1_of_9/test.xml"])
def test_a_broken_file_is_named_and_nothing_is_written(
    tmp_path: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a file of the wrong repository would be extended."""
    _run(tmp_path, 1, {"x": 1.0})
    (tmp_path / broken).write_text("<", encoding="utf-8")
    out = tmp_path / "timings.json"
    before = out.read_text(encoding="utf-8") if out.exists() else None
    assert timings.main([f"--out={out}", str(tmp_path / "testlogs")]) == 1
    assert str(tmp_path / broken) in capsys.readouterr().err
    assert (out.read_text(encoding="utf-8") if out.exists() else None) == before


def test_written_timings_can_be_read(tmp_path: Path) -> None:
    """If this fails, the timings that one program writes are lost for the program that reads them."""
    path = tmp_path / "timings.json"
    timings.write_timings(path, {"//b:b": {"b.test_2": 0.5, "b.test_1[\u00fc]": 12}, "//a:a": {}})
    assert read_timings(path) == {"//a:a": {}, "//b:b": {"b.test_1[\u00fc]": 12, "b.test_2": 0.5}}


def test_the_file_is_the_same_for_the_same_timings(tmp_path: Path) -> None:
    """If this fails, equal timings change the checked-in file, which costs a review and new cache keys."""
    path = tmp_path / "timings.json"
    timings.write_timings(path, {"//b:b": {"y": 1.0004, "x": 2.0}, "//a:a": {"z": 3.0}})
    first = path.read_text(encoding="utf-8")
    timings.write_timings(path, {"//a:a": {"z": 3.0}, "//b:b": {"x": 2.0, "y": 1.0001}})
    assert path.read_text(encoding="utf-8") == first
    assert first.endswith("}\n")


def test_an_unwritable_file_is_refused(tmp_path: Path) -> None:
    """If this fails, a folder that does not exist causes a traceback."""
    with pytest.raises(ReportError, match="cannot be written"):
        timings.write_timings(tmp_path / "no" / "such" / "folder.json", {})


def test_the_file_is_readable(tmp_path: Path) -> None:
    """If this fails, a reviewer cannot see which case became slower."""
    path = tmp_path / "timings.json"
    timings.write_timings(path, {"//a:a": {"c[\u00fc]": 1.23456}})
    assert json.loads(path.read_text(encoding="utf-8"))["targets"] == {"//a:a": {"c[\u00fc]": 1.235}}
    assert '\n      "c[\u00fc]": 1.235\n' in path.read_text(encoding="utf-8")
