"""`report ran-nowhere`: the cases that no job of a matrix has run, from files as pytest and Bazel write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_testing.core.bazel.junit import XmlSuite, write_suites
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import CaseRecord
from dist_testing.report.__main__ import main
from dist_testing.report.ran_nowhere import job_names

_SKIPPED = '<skipped type="pytest.skip" message="{}">t.py:1: {}</skipped>'


def _case(name: str, inside: str = "", classname: str = "tests.test_a") -> str:
    return f'<testcase classname="{classname}" name="{name}" time="0.1">{inside}</testcase>'


def _skipped(name: str, reason: str) -> str:
    return _case(name, _SKIPPED.format(reason, reason))


def _write(path: Path, *cases: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<testsuites><testsuite name="pytest">{"".join(cases)}</testsuite></testsuites>', encoding="utf-8")
    return path


def test_each_job_says_why_it_has_not_run_a_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, a test that runs in no job stays unknown, or is told where it has run."""
    cpu = _write(
        tmp_path / "cpu.xml",
        _case("test_runs"),
        _skipped("test_two", "Need at least 2 GPUs"),
        _skipped("test_four", "Need at least 2 GPUs"),
        _case("test_fails", "<failure message='bad'/>"),
        _case("test_expected", '<skipped type="pytest.xfail" message="known"/>'),
        _case("test_never", '<skipped type="pytest.xfail" message="[NOTRUN] crashes"/>'),
        _skipped("test_elsewhere", "no NCCL"),
        _case("tests.test_b", "<error message='collection failure'>E   ImportError: no b</error>", ""),
        _case("tests.test_c", "<skipped message='collection skipped'>('c.py', 1, 'Skipped: no c')</skipped>", ""),
    )
    gpu = tmp_path / "gpu.xml"
    # Bazel's file has a suite for each target, here of two backends.
    elsewhere = CaseRecord("tests.test_a.test_elsewhere", "skipped", message="for nccl")
    write_suites(
        gpu,
        [
            XmlSuite("//tests:a_gloo", [elsewhere]),
            XmlSuite(
                "//tests:a_nccl",
                [
                    CaseRecord("tests.test_a.test_elsewhere", "passed"),
                    CaseRecord("tests.test_a.test_two", "skipped", message="Need at least 2 GPUs\u202e (found 1)"),
                    CaseRecord("tests.test_a.test_four", "skipped", message="Need at least 2 GPUs\u202e (found 1)"),
                    CaseRecord("tests.test_b.test_x[1.5]", "skipped", message="later"),
                    CaseRecord("tests/test_d.py", "failed", when="collect", message="ImportError: no d"),
                ],
            ),
        ],
    )
    assert main(["ran-nowhere", str(cpu), str(gpu)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "cpu.xml: has run 3 of 9 cases",
        "gpu.xml: has run 1 of 5 cases",
        "6 of 11 cases ran in no job",
        "",
        "tests.test_a.test_two",
        "tests.test_a.test_four",
        "    cpu.xml: Need at least 2 GPUs",
        "    gpu.xml: Need at least 2 GPUs\u2039U+202E\u203a (found 1)",
        "",
        "tests.test_a.test_never",
        "    cpu.xml: [NOTRUN] crashes",
        "    gpu.xml: not collected",
        "",
        "tests.test_c",
        "    cpu.xml: collection skipped: ('c.py', 1, 'Skipped: no c')",
        "    gpu.xml: not collected",
        "",
        "tests.test_b.test_x[1.5]",
        "    cpu.xml: collection failure: E ImportError: no b",
        "    gpu.xml: later",
        "",
        "tests.test_d",
        "    cpu.xml: not collected",
        "    gpu.xml: ImportError: no d",
    ]


def test_a_matrix_that_runs_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, a CI job for it is never green."""
    one = _write(tmp_path / "1" / "test.xml", _case("test_a"), _skipped("test_b", "no"))
    two = _write(tmp_path / "2" / "test.xml", _case("test_b"))
    assert main(["ran-nowhere", str(one), str(two)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1/test.xml: has run 1 of 2 cases",
        "2/test.xml: has run 1 of 1 case",
        "0 of 2 cases ran in no job",
    ]
    # A list of files that is empty is no such matrix.
    with pytest.raises(SystemExit) as caught:
        main(["ran-nowhere"])
    assert caught.value.code == 2
    assert "RESULTS" in capsys.readouterr().err
    # A quarantine file has accepted that a case does not run.
    row = '<properties><property name="quarantine" value="skipped"/></properties>'
    three = _write(tmp_path / "3.xml", _case("test_c", row + _SKIPPED.format("quarantined: fills the disk", "")))
    assert main(["ran-nowhere", str(one), str(two), str(three)]) == 0
    told = capsys.readouterr().out
    assert "1 of 3 cases ran in no job, 1 of them quarantined\n\ntests.test_a.test_c\n" in told
    # Not if it skips itself.
    _write(three, _case("test_c", row + _SKIPPED.format("no GPU", "")))
    assert main(["ran-nowhere", str(one), str(two), str(three)]) == 1
    capsys.readouterr()
    # A folder is one job, with a file for each target and shard.
    _write(tmp_path / "testlogs" / "a" / "shard_1_of_2" / "test.xml", _case("test_a"))
    _write(tmp_path / "testlogs" / "a" / "shard_2_of_2" / "test.xml", _skipped("test_b", "no"))
    assert main(["ran-nowhere", str(tmp_path / "testlogs")]) == 1
    assert capsys.readouterr().out.endswith("\ntests.test_a.test_b\n    testlogs: no\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file or folder"),
        ("<testsuites><testsuite/></testsuites>", "no test cases"),
        ("<!DOCTYPE t [<!ENTITY e SYSTEM 'file:///etc/hostname'>]><testsuite>&e;</testsuite>", "cannot be read as XML"),
    ],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str) -> None:
    """If this fails, a job whose results were lost looks like one that has run everything, or ends in a traceback."""
    good = _write(tmp_path / "good.xml", _case("test_a"))
    bad = tmp_path / "bad.xml"
    if content is not None:
        bad.write_text(content, encoding="utf-8")
    assert main(["ran-nowhere", str(good), str(bad)]) == 2
    told = capsys.readouterr().err
    assert said in told.partition("\n")[0]
    assert len(told.splitlines()) == 3
    # Also as one of several files of a job.
    _write(tmp_path / "job" / "a.xml", _case("test_a"))
    (tmp_path / "job" / "b.xml").touch()
    assert main(["ran-nowhere", str(tmp_path / "job")]) == 2
    assert "b.xml: cannot be read as XML" in capsys.readouterr().err


def test_listed_cases_must_run_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, a test that every job deselects is in no result, and so looks as if it did not exist."""
    good = _write(tmp_path / "good.xml", _case("test_a"))
    cases = tmp_path / "cases"
    lines = ['{"case": "tests/test_a.py::test_a"}', '{"case": "tests/test_a.py::Test::test_b[1::2]"}', "", "2 tests"]
    cases.write_text("\n".join(lines), encoding="utf-8")
    assert main(["ran-nowhere", f"--cases={cases}", str(good)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "good.xml: has run 1 of 1 case",
        "1 of 2 cases ran in no job",
        "",
        "tests.test_a.Test.test_b[1::2]",
        "    good.xml: not collected",
    ]
    for content in ("", "2 tests", '{"case": ', '{"name": 1}', "\udcff", "{" + "[" * 100_000):
        cases.write_text(content, encoding="utf-8", errors="surrogateescape")
        assert main(["ran-nowhere", f"--cases={cases}", str(good)]) == 2
        told = capsys.readouterr().err
        assert "no cases" in told or "cannot be read as a list of cases" in told
        assert len(told.splitlines()) == 3
    assert main(["ran-nowhere", "--cases", str(tmp_path / "missing"), str(good)]) == 2


def test_names_of_jobs_differ() -> None:
    """If this fails, nobody knows which job a reason is from."""
    assert job_names([Path("a/x.xml"), Path("b/y.xml")]) == ["x.xml", "y.xml"]
    assert job_names([Path("a/b/x.xml"), Path("c/b/x.xml")]) == ["a/b/x.xml", "c/b/x.xml"]
    with pytest.raises(ReportError, match="named twice") as caught:
        job_names([Path("a.xml"), Path("./a.xml").absolute()])
    assert len(str(caught.value).splitlines()) == 3
