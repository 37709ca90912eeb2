"""The forms for other programs: JSON against its published schema, CTRF, JUnit, GitHub and Markdown."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.ground.record import CaseRecord
from dist_testing.report.__main__ import main
from dist_testing.report.facts import ledger, quarantined
from dist_testing.report.files import SCHEMA_FILE, annotation_lines, ctrf, exported, markdown, write_text
from dist_testing.report.flakes import votes
from dist_testing.report.gather import gather
from dist_testing.report.model import Report, RunRecord
from dist_testing.report.page import page
from tests.report.schema_check import check
from tests.report.streams import RULE, Case, stream_events, write_events, write_stream

_TEXT = f"head\n{RULE}\nrank 1 of 2 failed first: it raised ValueError\n\nE   ValueError\n\ndir/t.py:14: ValueError"
_EVERY = [
    Case("t.py::C::bad[1.5]", "failed", "rank 1 raised", _TEXT, 2, "failure", 1, (0,), warning="hm", has_faults=True),
    Case("t.py::ok"),
    Case("t.py::no", "skipped", "no GPU", world_size=0),
    Case("t.py::xf", "xfailed", "known"),
    Case("t.py::xp", "xpassed", "known"),
    Case("t.py::machine", "failed", "never started", cause="infrastructure"),
]


def _report(folder: Path, *cases: Case, target: str = "") -> Report:
    return gather([write_stream(folder / "e.jsonl", cases or _EVERY, target=target)])


def test_the_json_fits_its_published_schema(tmp_path: Path) -> None:
    """If it fails, programs that read the export break without a new version of the schema."""
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    content = json.loads(exported(_report(tmp_path)))
    check(content, schema, "$")
    (run,) = content["runs"]
    assert [case["status"] for case in run["cases"]] == ["failed", "passed", "skipped", "xfailed", "xpassed", "error"]
    assert run["cases"][0]["ranks"][1]["outcome"] == "raised"
    assert run["cases"][0]["ranks"][0]["phases"][0][0] == "start"
    assert run["cases"][0]["faults"][1] == {"at_s": 0.11, "action": "kill", "ranks": [1], "by": 0, "asked_s": 0.1}
    assert content["counts"]["passed"] == 1
    # The check itself finds errors.
    for wrong in ({"schema": 3}, {"counts": None}, {"runs": [{**run, "shard": "1"}]}, {"runs": [{**run, "more": 1}]}):
        with pytest.raises(AssertionError, match=r"\$"):
            check({**content, **wrong}, schema, "$")


def test_a_pipe_and_a_link_stay(tmp_path: Path) -> None:
    """If it fails, `--json=/dev/stdout` of root puts a file in the place of the device, for all programs after it."""
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        for target in (pipe, file):
            link = tmp_path / f"{target.name}_link"
            link.symlink_to(target)
            assert write_text(link, "text") == 4
            assert (link.is_symlink(), pipe.is_fifo()) == (True, True)
        assert (reader.read(), file.read_bytes()) == (b"text", b"text")


def test_an_output_that_takes_not_everything_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, a folder whose name is no UTF-8 or a closed output ends in a traceback, without the other files."""
    path = write_stream(tmp_path / "e.jsonl", _EVERY)
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    with open(tmp_path / "told", "w", encoding="utf-8") as told:
        for number, stdout in enumerate((told, None)):
            monkeypatch.setattr(sys, "stdout", stdout)
            assert main([str(path), f"--out={folder / 'p.html'}", f"--junit={folder / f'{number}.xml'}"]) == 0
    assert len(list(folder.iterdir())) == 3
    assert r"caf\udce9/p.html: " in (tmp_path / "told").read_text(encoding="utf-8")


def test_hostile_numbers_are_still_json(tmp_path: Path) -> None:
    """If it fails, a damaged stream or a recorded NaN ends the export in a traceback."""
    path = write_stream(tmp_path / "e.jsonl", _EVERY)
    text = path.read_text(encoding="utf-8").replace('[["start",', '[["start",-1e308,1e308],["start",')
    path.write_text(
        text.replace('"duration_s":0.25', '"duration_s":1e308').replace('"at_s":101.0', '"at_s":-1e308'),
        encoding="utf-8",
    )
    report = gather([path])
    for content in (exported(report), ctrf(report)):
        assert "Infinity" not in content
        json.loads(content)
    assert markdown(report)
    assert main([str(path), f"--out={tmp_path / 'p.html'}", f"--junit={tmp_path / 'j.xml'}"]) == 0
    case = CaseRecord("t.a", "passed", properties=(("loss", math.nan), ("all", {"losses": [math.inf]})))
    found = json.loads(exported(Report(runs=(RunRecord("//a:a", cases=(case,)),))))
    assert found["runs"][0]["cases"][0]["properties"] == [["loss", "NaN"], ["all", {"losses": ["Infinity"]}]]


def test_ctrf_has_its_required_fields(tmp_path: Path) -> None:
    """If it fails, programs that read CTRF refuse the file."""
    content = json.loads(ctrf(_report(tmp_path)))
    results = content["results"]
    assert (content["reportFormat"], results["tool"]["name"]) == ("CTRF", "dist_testing")
    summary = results["summary"]
    counts = {"tests": 6, "passed": 3, "failed": 2, "skipped": 1, "pending": 0, "other": 0}
    assert counts.items() <= summary.items()
    assert summary["start"] <= summary["stop"]
    assert {type(summary["start"]), type(results["tests"][0]["duration"])} == {int}
    assert {test["status"] for test in results["tests"]} == {"passed", "failed", "skipped"}
    assert results["tests"][0]["trace"] == _TEXT


def test_a_killed_run_is_no_pass_of_the_tests_before_the_kill(tmp_path: Path) -> None:
    """If it fails, CI shows a run that was killed between two tests as green."""
    path = write_events(tmp_path / "e.jsonl", stream_events([Case("t.py::ok")])[:-1])
    tests = json.loads(ctrf(gather([path])))["results"]["tests"]
    assert [(test["name"], test["status"]) for test in tests] == [("t.ok", "passed"), (str(path), "failed")]
    assert tests[1]["message"] == "The run was killed, or its last events are missing."


def test_the_merged_junit_file_reads_as_the_same_results(tmp_path: Path) -> None:
    """If it fails, a CI server shows other results than the page."""
    write_stream(tmp_path / "in" / "a" / "e.jsonl", _EVERY, target="//a:a")
    write_stream(tmp_path / "in" / "b" / "e.jsonl", [Case("t.py::other")], target="//b:b")
    out = tmp_path / "merged.xml"
    assert main([str(tmp_path / "in"), f"--out={tmp_path / 'p.html'}", f"--junit={out}"]) == 0
    found = {run.target: {case.name: case.status for case in run.cases} for run in gather([out]).runs}
    statuses = {"t.C.bad[1.5]": "failed", "t.ok": "passed", "t.no": "skipped", "t.xf": "xfailed", "t.xp": "passed"}
    assert found == {"//a:a": {**statuses, "t.machine": "error"}, "//b:b": {"t.other": "passed"}}


def test_annotations_point_to_the_culprits_line_and_nothing_breaks_out(tmp_path: Path) -> None:
    """If it fails, a test's message runs a command of GitHub's runner, or the annotation points nowhere."""
    hostile = Case("t.py::x", "failed", "100 %\n::set-env name=PATH::x,y: \x1b[31m", "", 2, "failure", 0)
    lines = list(annotation_lines(_report(tmp_path, _EVERY[0], hostile, target="//a:a")))
    assert lines[0] == "::error file=dir/t.py,line=14,title=t.C.bad[1.5]:://a:a: rank 1 raised"
    assert lines[1] == "::error file=t.py,title=t.x:://a:a: 100 %25%0A::set-env name=PATH::x,y: "
    many = list(annotation_lines(_report(tmp_path, *[Case(f"t.py::t{n}", "failed", "m") for n in range(30)])))
    assert len(many) == 11
    assert many[-1].startswith("::notice title=dist_testing::20 more failures")


def _frames(*lines: str) -> str:
    return f"head\n{RULE}\nrank 1 of 2 failed first: it exited with code 7\n\n" + "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        # The last line of the user's sources, not that of a library below it.
        (_frames("a/t.py:14: in f", "a/help.py:3: in g", "/x/site-packages/torch/d.py:9: Error"), "a/help.py,line=3"),
        (
            _frames('  File "/b/x.runfiles/_main/a/t.py", line 5', '  File "/usr/lib/python3.11/ast.py", line 6'),
            "a/t.py,line=5",
        ),
        (_frames("../../w/a/t.py:8: ValueError"), "a/t.py,line=8"),
        (_frames("/elsewhere/u.py:8: ValueError"), "a/t.py"),
        # Stacks begin with the innermost line.
        (
            _frames() + f"\n{RULE}\nstacks of rank(s) 0, 1:\n\nCurrent thread (most recent call first):\n"
            '  File "/x/site-packages/d.py", line 1\n  File "a/t.py", line 55\n  File "a/main.py", line 4',
            "a/t.py,line=55",
        ),
        # The culprit has no traceback; that of a victim is not its place.
        (_frames() + f'\n{RULE}\nstacks of rank(s) 0:\n\n  File "a/other.py", line 477', "a/t.py"),
        (f'head\n{RULE}\nstacks of rank(s) 0:\n\n  File "a/other.py", line 477', "a/t.py"),
    ],
)
def test_an_annotation_is_at_a_line_of_the_users_sources(tmp_path: Path, text: str, place: str) -> None:
    """If it fails, GitHub shows the annotation at a file that is not in the checkout, or blames a victim's line."""
    (line,) = annotation_lines(_report(tmp_path, Case("a/t.py::x", "failed", "m", text, 2, "crash", 1, (0,))))
    assert line == f"::error file={place},title=a.t.x::{tmp_path}/e.jsonl: m"


def test_the_summary_of_a_job_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, the job has no summary, or that of another step is gone."""
    place = tmp_path / "summary.md"
    place.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place))
    path = write_stream(tmp_path / "e.jsonl", _EVERY)
    assert main([str(path), f"--out={tmp_path / 'p.html'}", "--github", "--title=CPU"]) == 0
    text = place.read_text(encoding="utf-8")
    assert text.startswith("before\n### CPU\n\n1 failed, 1 infrastructure failed,")
    assert "no GPU" in text


def test_markdown_stays_text(tmp_path: Path) -> None:
    """If it fails, a test's message mentions people, makes links, or closes the block that it is in."""
    nasty = "```\n</details> @everyone [x](https://evil) `code` | <b> www.evil.com"
    text = markdown(_report(tmp_path, Case(f"t.py::x[{nasty}]", "failed", nasty, nasty, 2, "failure", 0)))
    outside, _, block = text.partition("````text")
    assert not [part for part in ("https://", "@everyone", "<b>") if part in outside]
    assert block.count("````") == 1
    assert "  </details>" in block.partition("  ````")[2]
    # A failure that tells only blanks has no block to open.
    assert "<details>" not in markdown(_report(tmp_path, Case("t.py::x", "failed", "m", " \n  \n")))


def test_quarantined_cases_have_a_place_of_their_own(tmp_path: Path) -> None:
    """If it fails, a known failure is lost among the skips, or an entry of the file writes into the page."""
    nasty = "<b>|x"
    texts = {"reason": nasty, "link": nasty, "owner": nasty, "expires": "2999-01-31", "failure": nasty}
    properties = (("quarantine", "failed"), *((f"quarantine_{name}", text) for name, text in texts.items()))
    cases = [
        CaseRecord("t.known", "xfailed", message="quarantined: x", properties=properties),
        # As XML of another program may have it.
        CaseRecord("t.healed", "passed", properties=(("quarantine", "passed"),)),
        CaseRecord("t.other", "passed"),
    ]
    # A record of ours, and pytest's own XML.
    ours, pytests = tmp_path / "test.xml", tmp_path / "pytest.xml"
    write_xml(ours, "//a:a", cases)
    text = ours.read_text(encoding="utf-8").replace('message="xfail: ', 'type="pytest.xfail" message="')
    pytests.write_text(text, encoding="utf-8")
    for file in (ours, pytests):
        report = gather([file])
        assert [case.name for _, case, _ in quarantined(report)] == ["t.known", "t.healed"]
        assert {vote.case: vote.kind for vote in votes(report)} == {"t.known": "failed", "t.healed": "", "t.other": ""}
        assert not ledger(report)
        shown, summary = page(report, made_wall_s=0.0), markdown(report)
        part = shown.partition('<section id="quarantined">')[2].partition("</section>")[0]
        told = [name for name in ("t.known", "t.healed", "t.other", "2999-01-31") if name in part]
        assert (told, part.count("&lt;b&gt;|x")) == (["t.known", "t.healed", "2999-01-31"], 4)
        assert "**Quarantined**" in summary
        assert nasty not in shown + summary
    assert "quarantined" not in markdown(Report())
