"""What the page says of remote invocations: results that stayed there, names of workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.events.event import RunStarted
from dist_testing.core.ground.record import CaseRecord
from dist_testing.report.__main__ import main
from dist_testing.report.gather import gather
from dist_testing.report.page import page
from tests.report.streams import Action, Case, build_events, stream_events, write_build_events, write_events

_RULE = "-" * 100
_DEEP = "/root/.cache/workers/7/wheels/769c2f2f/site-packages/torch/nn/linear.py"
_OWN = "/root/sandbox/12/bin/a/b_gloo.runfiles/_main/a/test_b.py"
_TEXT = (
    f"rank 1 raised\n{_RULE}\nstacks of rank(s) 0:\n"
    f'  File "{_DEEP}", line 3 in forward\n  File "{_OWN}", line 9 in test_b\n  File "/usr/lib/x.py", line 1 in y\n'
    f"{_RULE}\nrank 1 of 2 failed first: it raised\n\nE   ValueError"
)


def _xml(folder: Path) -> Path:
    path = folder / "testlogs" / "a" / "a" / "test.xml"
    path.parent.mkdir(parents=True)
    write_xml(path, "//a:a", [CaseRecord("t.ok", "passed", duration_s=1.0)])
    return path


def _at(label: str, uri: str) -> Action:
    outputs = [{"name": "test.xml", "uri": uri}] if uri else []
    return Action(label, more={"testActionOutput": outputs})


def test_results_that_are_not_here_are_one_problem_with_its_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it fails, a run with --remote_download_minimal fills the page with the same sentence, or does not say why."""
    remote = f"bytestream://host/blobs/{'a' * 64}/42"
    actions = [_at(f"//a:r{number}", remote) for number in range(7)]
    actions += [_at("//a:gone", f"file://{tmp_path}/gone/test.xml"), _at("//a:none", "")]
    events = write_build_events(tmp_path / "bep.json", build_events(actions))
    assert main([str(events), f"--out={tmp_path / 'page.html'}"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "report: //a:r0 (and 7 more): its test.xml is not on this machine, so its cases are unknown.",
        "report: //a:none: it has left no test.xml, so its cases are unknown.",
    ]
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert ">Passed, details unknown</h1>" in text
    assert text.count("--remote_download_outputs=toplevel") == 1
    assert text.count("and the same of 6 more") == 1
    assert all(f"//a:r{number}" in text for number in range(7))
    assert text.count("It was removed, or the build events are of another machine.") == 1
    assert text.count("The test or its worker ended before Bazel could write the file.") == 1


def test_a_failure_names_its_worker_and_its_stacks_have_short_paths(tmp_path: Path) -> None:
    """If it fails, no one sees that all failures are of one worker, or where a rank was."""
    xml = tmp_path / "testlogs" / "a" / "a" / "test.xml"
    case = Case("a/t.py::bad", "failed", "rank 1 raised", _TEXT, 2, "failure", 1, (0,))
    first, *rest = stream_events([case], target="//a:a")
    assert isinstance(first, RunStarted)
    write_events(xml.parent / "test.outputs" / "events.jsonl.gz", [replace(first, host="worker-7"), *rest])
    write_xml(xml, "//a:a", [])
    action = Action("//a:a", xml, "FAILED", {"executionInfo": {"strategy": "remote"}})
    report = gather([write_build_events(tmp_path / "bep.json", build_events([action]))])
    assert report.runs[0].host == "worker-7"
    text = page(report, made_wall_s=0.0)
    assert '<span class="chip">on worker-7</span>' in text
    assert "File &#34;.../site-packages/torch/nn/linear.py&#34;, line 3 in forward" in text
    assert "File &#34;.../a/test_b.py&#34;, line 9 in test_b" in text
    assert "File &#34;/usr/lib/x.py&#34;, line 1 in y" in text


def test_a_target_that_could_not_be_analysed_has_its_reason_and_is_the_headline(tmp_path: Path) -> None:
    """If it fails, the page says "it could not be built" of a target for GPUs that the machine does not have."""
    told = (
        "(02:27:19) INFO: Analyzed 5 targets.\n"
        "(02:27:19) WARNING: errors encountered while analyzing target '//a:gpus', it will not be built.\n"
        "Target //a:gpus is incompatible and cannot be built, but was explicitly requested.\nDependency chain:\n"
        "    //a:other (f4ea99)\n    //a:gpus (f4ea99)   <-- target platform didn't satisfy constraint //c:gpus_2\n"
        "(02:27:19) INFO: Analysis succeeded for only 4 of 5 top-level targets\n"
    )
    more: list[dict[str, object]] = [
        {"id": {"progress": {}}, "progress": {"stderr": told}},
        {"id": {"targetCompleted": {"label": "//a:gpus"}}, "aborted": {}},
    ]
    events = build_events([Action("//a:a", _xml(tmp_path))], *more)
    events[-1] = {"id": {"buildFinished": {}}, "finished": {"exitCode": {"name": "BUILD_FAILURE", "code": 1}}}
    report = gather([write_build_events(tmp_path / "bep.json", events)])
    (line,) = report.not_run
    assert line.reason == (
        "Target //a:gpus is incompatible and cannot be built, but was explicitly requested: "
        "target platform didn't satisfy constraint //c:gpus_2"
    )
    assert ">1 target not built</h1>" in page(report, made_wall_s=0.0)


def test_the_head_of_the_page_counts_targets_that_were_not_built(tmp_path: Path) -> None:
    """If it fails, a page says that 3 of 3 cases failed, and not that a target is missing."""
    aborted: dict[str, object] = {
        "id": {"targetCompleted": {"label": "//a:broken"}},
        "completed": {"failureDetail": {"message": "no such file"}},
    }
    events = build_events([Action("//a:a", _xml(tmp_path))], aborted)
    text = page(gather([write_build_events(tmp_path / "bep.json", events)]), made_wall_s=0.0)
    head = text[text.index("<header") : text.index("</header")]
    assert "1 target not built" in head
