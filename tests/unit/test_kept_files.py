"""What is kept of a failed case: its whole report, and the logs of its ranks; and the folder of a run."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.engine import kept_files
from dist_testing.core.engine.kept_files import ReportFolder, keep_logs, keep_report
from dist_testing.core.engine.report import failure_report
from dist_testing.core.engine.run_directory import RunDirectory
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from tests.support.results import result_of


def _result(name: str, folder: Path | None = None, *logs: bytes) -> CaseResult:
    """Return the result of a case whose ranks have these logs, in a folder of their own."""
    files = {}
    for rank, content in enumerate(logs):
        assert folder is not None
        files[rank] = folder / f"{len(list(folder.iterdir()))}.txt"
        files[rank].write_bytes(content)
    return result_of([RankOutcome(0, Kind.RAISED, 101.0, text="x\n" * 1000)], name=name, log_files=files)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The folder in which they are kept."""
    path = tmp_path / "outputs"
    path.mkdir()
    return path


def _keep_log(name: str, text: str, folder: Path) -> None:
    keep_logs(_result(name, folder.parent, text.encode()), folder)


def _keep_report(name: str, text: str, folder: Path) -> None:
    keep_report(_result(name), text, folder)


_EACH = pytest.mark.parametrize("keep", [_keep_log, _keep_report])
_Keep = Callable[[str, str, Path], None]


@_EACH
@pytest.mark.parametrize(
    ("limit", "value"), [("_MAX_FILES", 3), ("_MAX_FOLDER_BYTES", 3 * 2048)], ids=["files", "bytes"]
)
def test_a_disk_is_not_filled_and_other_files_stay(
    kept: Path, monkeypatch: pytest.MonkeyPatch, keep: _Keep, limit: str, value: int
) -> None:
    """If this fails, 64 ranks and a hundred failures write gigabytes, or the outputs of a test are removed."""
    monkeypatch.setattr(kept_files, limit, value)
    (kept / "of-a-test.rank-0.log").write_bytes(b"123456789")
    for number in range(5):
        keep(f"test_{number}", "x" * 2000, kept)
    assert {path.name.partition(".")[0] for path in kept.iterdir()} == {"of-a-test", "test_2", "test_3", "test_4"}


@_EACH
def test_names_that_differ_in_strange_characters_have_different_files(kept: Path, keep: _Keep) -> None:
    """If this fails, a file of one case replaces that of another, or lies in a folder, on which Bazel 8.0 fails."""
    names = ["a[x]", "a(x)", "a" * 400 + "b", "c" + "a" * 399 + "b", "../../a"]
    for name in names:
        keep(name, name, kept)
    assert sorted(path.read_text() for path in kept.iterdir()) == sorted(names)
    # A second run of the case replaces what is kept of the first.
    keep("a[x]", "new", kept)
    assert sorted(path.read_text() for path in kept.iterdir()) == sorted(["new", *names[1:]])


def test_logs_have_case_and_rank_in_their_names(tmp_path: Path, kept: Path) -> None:
    """If this fails, a user opens the logs of all cases to find one. No user opens an empty file."""
    keep_logs(_result("a/test_b.py::C::test_d[x/../y z]", tmp_path, b"zero", b"", b"two"), kept)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
        "a-test_b.py-C-test_d-x-..-y-z.81e78adc.rank-0.log": b"zero",
        "a-test_b.py-C-test_d-x-..-y-z.81e78adc.rank-2.log": b"two",
    }


def test_only_the_beginning_and_the_end_of_a_long_log_are_kept(tmp_path: Path, kept: Path) -> None:
    """If this fails, a rank that prints without end fills the cache."""
    size = kept_files._MAX_LOG_BYTES
    keep_logs(_result("a", tmp_path, b"begin" + b"x" * 2 * size + b"end"), kept)
    (path,) = kept.iterdir()
    content = path.read_bytes()
    assert content.startswith(b"begin")
    assert content.endswith(b"end")
    assert f"... {size + 8} bytes left out ...".encode() in content
    assert len(content) < size + 100


def test_what_cannot_be_kept_costs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, a full disk turns a failure into an error of this library, or changes a verdict."""
    keep_logs(_result("a", tmp_path, b"said"), tmp_path / "gone")
    assert "the logs of a cannot be kept" in capsys.readouterr().out
    result = _result("a")
    report = failure_report(result, keep=lambda whole: ReportFolder(lambda: tmp_path / "gone").keep(result, whole))
    assert "The whole report could not be kept: [Errno 2]" in report.splitlines()[-1]


def test_without_pytest_reports_are_kept_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, another user of the machine can read a report, or replace it by a link to a file of this one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sentence = ReportFolder().keep(_result("a"), "whole")
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sentence.startswith(f"The whole report: {folder}/")
    folder.chmod(0o755)
    assert "could not be kept" in ReportFolder().keep(_result("a"), "whole")


def test_a_run_needs_no_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, no test runs in a container with a read-only /tmp, although TMPDIR is a folder of this user."""
    make = tempfile.mkdtemp

    def refuse_tmp(*, prefix: str, dir: str | None) -> Any:  # noqa: A002  # mkdtemp's
        if dir == "/tmp":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), dir)
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", refuse_tmp)
    long = tmp_path / ("x" * 60)
    long.mkdir()
    directory = RunDirectory({"TEST_TMPDIR": str(long)})
    assert directory.short == directory.path
    directory.remove()
    assert not list(long.iterdir())


def test_an_incomplete_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, each case leaves a folder and a descriptor behind, because a run asks again for each case."""

    def refuse_lock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    # A network disk may have no locks.
    monkeypatch.setattr(fcntl, "flock", refuse_lock)
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No locks"):
        RunDirectory({"TEST_TMPDIR": str(tmp_path)})
    assert os.listdir("/proc/self/fd") == descriptors
    assert not list(tmp_path.iterdir())
