"""The logs that are kept of a failed case."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_testing.core.engine import kept_files as outputs
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from tests.support.results import result_of


def _result(folder: Path, name: str, *logs: bytes) -> CaseResult:
    files = {}
    for rank, content in enumerate(logs):
        files[rank] = folder / f"{len(list(folder.iterdir()))}.txt"
        files[rank].write_bytes(content)
    outcomes = [RankOutcome(rank, Kind.PASSED) for rank in range(len(logs))]
    return result_of(outcomes, name=name, log_files=files)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The folder in which Bazel shows them."""
    path = tmp_path / "outputs"
    path.mkdir()
    return path


def test_logs_lie_in_one_folder_with_case_and_rank_in_their_names(tmp_path: Path, kept: Path) -> None:
    """If this fails, logs are in nested folders, on which some versions of Bazel fail, or replace each other."""
    outputs.keep_logs(_result(tmp_path, "a/test_b.py::C::test_d[x/../y z]", b"zero", b"one"), kept)
    # Names that differ only in special characters; no user opens an empty file.
    outputs.keep_logs(_result(tmp_path, "test[a b]", b"", b"first"), kept)
    outputs.keep_logs(_result(tmp_path, "test[a/b]", b"", b"second"), kept)
    found = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert {name: content for name, content in found.items() if name.startswith("a-")} == {
        "a-test_b.py-C-test_d-x-..-y-z.81e78adc.rank-0.log": b"zero",
        "a-test_b.py-C-test_d-x-..-y-z.81e78adc.rank-1.log": b"one",
    }
    others = sorted((content, name) for name, content in found.items() if name.startswith("test-a-b."))
    assert [content for content, _ in others] == [b"first", b"second"]
    assert all(name.endswith(".rank-1.log") for _, name in others)
    assert len(found) == 4


def test_only_the_beginning_and_the_end_of_a_long_log_are_kept(tmp_path: Path, kept: Path) -> None:
    """If this fails, a rank that prints without end fills the cache."""
    size = outputs._MAX_LOG_BYTES
    outputs.keep_logs(_result(tmp_path, "a", b"begin" + b"x" * 2 * size + b"end"), kept)
    (path,) = kept.iterdir()
    content = path.read_bytes()
    assert content.startswith(b"begin")
    assert content.endswith(b"end")
    assert f"... {size + 8} bytes left out ...".encode() in content
    assert len(content) < size + 100


def test_all_logs_together_are_bounded_and_other_files_stay(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, 64 ranks and a hundred failures write gigabytes, or the outputs of a test are removed."""
    monkeypatch.setattr(outputs, "_MAX_FOLDER_BYTES", 10)
    (kept / "of-a-test.rank-0.log").write_bytes(b"123456789")
    outputs.keep_logs(_result(tmp_path, "a", b"12345678"), kept)
    outputs.keep_logs(_result(tmp_path, "b", b"123"), kept)
    assert {path.name.partition(".")[0] for path in kept.iterdir()} == {"of-a-test", "b"}


def test_a_missing_folder_is_reported_and_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, a missing output folder changes the verdict."""
    outputs.keep_logs(_result(tmp_path, "a", b"said"), tmp_path / "gone")
    assert "the logs of a cannot be kept" in capsys.readouterr().out
