"""The logs that are kept of a failed case."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_testing.core.engine import kept_logs as outputs
from dist_testing.core.ground.case import Case, CaseBody, CaseResult
from dist_testing.core.ground.outcomes import Kind, RankOutcome, verdict


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The folder in which Bazel shows them."""
    path = tmp_path / "outputs"
    path.mkdir()
    return path


def _result(folder: Path, name: str, *logs: bytes) -> CaseResult:
    files = {}
    for rank, content in enumerate(logs):
        files[rank] = folder / f"{len(list(folder.iterdir()))}.txt"
        files[rank].write_bytes(content)
    outcomes = tuple(RankOutcome(rank=rank, kind=Kind.PASSED) for rank in range(len(logs)))
    return CaseResult(
        case=Case(name, len(logs), CaseBody("pytest"), 1.0, "fork"),
        verdict=verdict(outcomes, world_size=len(logs)),
        outcomes=outcomes,
        started_s=0.0,
        duration_s=0.0,
        limit_s=1.0,
        log_files=files,
    )


def test_logs_lie_in_one_folder_with_case_and_rank_in_their_names(tmp_path: Path, kept: Path) -> None:
    """If this fails, logs are in nested folders, on which some versions of Bazel fail."""
    outputs.keep_logs(_result(tmp_path, "a/test_b.py::C::test_d[x/../y z]", b"zero", b"one"), kept)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
        "a-test_b.py-C-test_d-x-..-y-z.rank-0.log": b"zero",
        "a-test_b.py-C-test_d-x-..-y-z.rank-1.log": b"one",
    }


def test_empty_logs_are_not_kept(tmp_path: Path, kept: Path) -> None:
    """If this fails, users open empty files."""
    outputs.keep_logs(_result(tmp_path, "a", b"", b"said"), kept)
    assert [path.name for path in kept.iterdir()] == ["a.rank-1.log"]


def test_cases_whose_names_differ_only_in_special_characters_keep_separate_logs(tmp_path: Path, kept: Path) -> None:
    """If this fails, the log of one failure is shown for another."""
    outputs.keep_logs(_result(tmp_path, "test[a b]", b"", b"first"), kept)
    outputs.keep_logs(_result(tmp_path, "test[a/b]", b"second", b"second"), kept)
    assert (kept / "test-a-b.rank-1.log").read_bytes() == b"first"
    assert (kept / "test-a-b.2.rank-1.log").read_bytes() == b"second"


def test_only_the_beginning_and_the_end_of_a_long_log_are_kept(tmp_path: Path, kept: Path) -> None:
    """If this fails, a rank that prints without end fills the cache."""
    size = outputs._MAX_LOG_BYTES
    outputs.keep_logs(_result(tmp_path, "a", b"begin" + b"x" * 2 * size + b"end"), kept)
    content = (kept / "a.rank-0.log").read_bytes()
    assert content.startswith(b"begin")
    assert content.endswith(b"end")
    assert f"... {size + 8} bytes left out ...".encode() in content
    assert len(content) < size + 100


def test_all_logs_together_are_bounded_and_omitted_ones_are_named(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, 64 ranks and a hundred failures write gigabytes, or logs are missing without a note."""
    monkeypatch.setattr(outputs, "_MAX_TOTAL_BYTES", 10)
    outputs.keep_logs(_result(tmp_path, "a", b"12345678", b"123"), kept)
    outputs.keep_logs(_result(tmp_path, "b", b"12", b"1"), kept)
    assert sorted(path.name for path in kept.iterdir()) == ["a.rank-0.log", "b.rank-0.log", "logs-left-out.txt"]
    left_out = (kept / "logs-left-out.txt").read_text(encoding="utf-8").splitlines()
    assert [line.partition(":")[0] for line in left_out] == ["a, ranks 1 and up", "b, ranks 1 and up"]


def test_a_name_that_cannot_be_encoded_is_escaped(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a parameter that cannot be encoded ends the list of omitted logs."""
    monkeypatch.setattr(outputs, "_MAX_TOTAL_BYTES", 0)
    outputs.keep_logs(_result(tmp_path, "test[\udce9]", b"said"), kept)
    assert "test[\\udce9], ranks 0 and up" in (kept / "logs-left-out.txt").read_text(encoding="utf-8")


def test_a_missing_folder_is_reported_and_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, a missing output folder changes the verdict."""
    outputs.keep_logs(_result(tmp_path, "a", b"said"), tmp_path / "gone")
    assert "the logs of a cannot be kept" in capsys.readouterr().out
