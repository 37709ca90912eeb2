"""Texts of tests in reports: any size, any characters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_testing.core.engine.kept_files import ReportFolder
from dist_testing.core.engine.report import failure_headline, failure_report
from dist_testing.core.engine.report_text import MAX_CHARS, cut_lines, printable
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.error_text import MAX_TEXT_CHARS, shorten
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.rank.reporter import fit_text
from tests.support.results import result_of

# What a user sees of a log at first.
_SCREEN = 40


def failed(
    text: str, *, summary: str = "ValueError: boom", further: int = 0, more: int = 0, log: str = ""
) -> CaseResult:
    """Return the result of a case whose rank 1 of 2 raised an error with this text."""
    other = RankOutcome(1, Kind.RAISED, 101.0, summary=summary, text=text)
    culprit = replace(other, further=(other,) * further, more_count=more)
    return result_of([RankOutcome(0, Kind.PASSED, 101.0), culprit], logs={1: log})


@pytest.mark.parametrize(
    "text",
    [
        "x" * 3_000_000,
        "line\n" * 100_000,
        "\0\x01\x1b[2J\x1b[1A\r\x7f\x9b" * 1000,
        "\n" * 3000,
        "\u2028".join("ab" * 2000),
        "\ud800 \udcff" * 5000,
    ],
    ids=["one line of 3 MB", "many lines", "control", "line feeds", "separators", "no text"],
)
@pytest.mark.parametrize("further", [0, 20])
def test_rank_case_and_first_line_are_on_the_last_screen(text: str, further: int) -> None:
    """If this fails, the end of the log shows a part of a message, and not which rank of which test has failed."""
    kept: list[str] = []

    def keep(whole: str) -> str:
        kept.append(whole)
        return "The whole report: FILE"

    if further:
        # As a rank sends it.
        text = shorten(text, 20_000)
    result = failed(text, further=further, more=1000 * further, log=text)
    report = failure_report(result, keep=keep)
    screen = "\n".join(report.split("\n")[-_SCREEN:])
    assert "tests/test_a.py::test_b (world of 2): rank 1 raised ValueError: boom in call" in screen
    assert len(report) < 300_000 + 21 * (MAX_CHARS)
    assert all(character in "\n\t" or character.isprintable() for character in report)
    report.encode()
    if len(text) > MAX_TEXT_CHARS:
        assert screen.endswith("The whole report: FILE")
        assert text.rstrip("\n") in kept[0]


def test_a_headline_is_one_line_whatever_the_text_is() -> None:
    """If this fails, a summary shows a part of a reason and not the case, or a message hides the verdict."""
    outcomes = (RankOutcome(0, Kind.PASSED, 101.0), RankOutcome(1, Kind.SKIPPED, 101.0, reason="a\nb\r" * 100_000))
    headline = failure_headline(result_of(outcomes))
    assert len(headline.splitlines()) == 1
    assert len(headline) < 1500
    headline = failure_headline(failed("", summary="ValueError: \x1b[31mred\x1b[0m \x1b[2J\u202egnp"))
    assert "rank 1 raised ValueError: red \\x1b[2J\\u202egnp in call" in headline


@given(st.text())
def test_printable_text_has_no_character_that_a_terminal_obeys(text: str) -> None:
    """If this fails, a character of a message changes how the rest of the log is shown."""
    shown = printable(text)
    assert not any((ord(c) < 0x20 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in shown)
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


@given(st.lists(st.text("ab", max_size=30), max_size=60), st.integers(3, 20), st.integers(10, 200))
def test_a_cut_text_keeps_its_ends_within_its_limits(lines: list[str], count: int, chars: int) -> None:
    """If this fails, a long text fills the log, or its last line is not in it."""
    text = "\n".join(lines)
    cut = cut_lines(text, count, chars)
    if cut == text.splitlines():
        return
    (mark,) = [number for number, line in enumerate(cut) if line.endswith(" lines left out ...")]
    head, tail = cut[:mark], cut[mark + 1 :]
    assert len(head) + len(tail) <= count
    assert sum(map(len, head + tail)) <= chars
    every = text.splitlines()
    assert every[: len(head)] == head
    assert every[len(every) - len(tail) :] == tail
    assert int(cut[mark].split()[1]) == len(every) - len(head) - len(tail)


def test_the_whole_text_of_a_rank_is_in_the_file_that_the_report_names(tmp_path: Path) -> None:
    """If this fails, what a message of 3 MB says in its middle is lost."""
    middle = "\n".join(f"line {number}" for number in range(400_000))
    assert fit_text(str(tmp_path), 1, "short") == "short"
    assert not list(tmp_path.iterdir())
    sent = fit_text(str(tmp_path), 1, middle)
    assert len(sent) < MAX_TEXT_CHARS + 100
    (path,) = tmp_path.iterdir()
    folder = tmp_path / "kept"
    folder.mkdir()
    result = replace(failed(sent), text_files={1: path})
    report = failure_report(result, keep=lambda whole: ReportFolder(lambda: folder).keep(result, whole))
    (kept,) = folder.iterdir()
    assert report.endswith(f"\nThe whole report: {kept}")
    whole = kept.read_text()
    assert whole.startswith("tests/test_a.py::test_b (world of 2)")
    assert middle in whole.partition("whole texts of rank 1:\n")[2]


def test_texts_of_a_rank_do_not_fill_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a loop of failing sub-tests with long messages fills the disk, or short reports name files."""
    monkeypatch.setattr("dist_testing.core.rank.reporter._MAX_FILE_BYTES", 1_000_000)
    for _ in range(5):
        fit_text(str(tmp_path), 0, "x" * 400_000)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == 1_000_000
    report = failure_report(failed("Traceback\nValueError: boom"), keep=lambda whole: pytest.fail("kept"))
    assert report.endswith("Traceback\nValueError: boom")
    assert "In short" not in report
