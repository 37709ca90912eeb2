"""What the report reads, and what it says about files that are damaged, foreign or hostile."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.events.event import CaseRecorded, RunEnded, TestsCollected
from dist_testing.core.ground.record import CaseRecord, Status
from dist_testing.report.build_events import read_invocation
from dist_testing.report.facts import failures, gpus_of
from dist_testing.report.files import exported
from dist_testing.report.flakes import votes
from dist_testing.report.gather import gather
from dist_testing.report.model import Report
from dist_testing.report.page import page
from tests.report.streams import (
    Action,
    Case,
    build_events,
    stream_events,
    write_build_events,
    write_events,
    write_stream,
)

FAILED = Case("t.py::bad", "failed", "rank 1 raised ValueError: x", "a text", 2, "failure", 1, (0,))


def _cases(report: Report) -> dict[str, CaseRecord]:
    return {case.name: case for run in report.runs for case in run.cases}


def _statuses(report: Report) -> dict[str, str]:
    return {name: case.status for name, case in _cases(report).items()}


def test_a_stream_of_pytest_gives_every_status_and_the_ranks(tmp_path: Path) -> None:
    """If it fails, the page shows wrong results for a plain pytest run."""
    cases = [
        Case("d/t.py::C::ok[1]", gpu_wait_s=1.5),
        FAILED,
        Case("t.py::machine", "failed", "rank 0 never started", cause="infrastructure"),
        Case("t.py::gone", "skipped", "needs 2 GPUs", world_size=0),
        Case("t.py::xf", "xfailed", "known"),
        Case("t.py::xp", "xpassed", "known"),
    ]
    report = gather([write_stream(tmp_path / "e.jsonl.gz", cases)])
    assert report.problems == ()
    assert _statuses(report) == {
        "d.t.C.ok[1]": "passed",
        "t.bad": "failed",
        "t.machine": "error",
        "t.gone": "skipped",
        "t.xf": "xfailed",
        "t.xp": "xpassed",
    }
    bad = _cases(report)["t.bad"]
    assert (bad.culprit, bad.victims, bad.world_size, bad.cause) == (1, (0,), 2, "failure")
    assert [(rank.outcome, rank.operation) for rank in bad.ranks] == [("stopped", "all_reduce"), ("raised", "")]
    assert [phase.name for phase in bad.ranks[0].phases][:2] == ["start", "init"]
    assert gpus_of(_cases(report)["d.t.C.ok[1]"]) == ("0, 1", 1.5)
    assert report.runs[0].backend == "gloo"


def test_a_run_that_was_killed_shows_what_was_running_and_what_did_not_begin(tmp_path: Path) -> None:
    """If it fails, a run that the machine has killed looks like a short good run."""
    path = write_stream(tmp_path / "e.jsonl", [Case("t.py::a"), Case("t.py::b", is_cut=True)], collected=7)
    report = gather([path])
    assert _statuses(report) == {"t.a": "passed", "t.b": "unfinished"}
    assert (report.runs[0].to_come, report.runs[0].is_complete) == (5, False)
    assert "did not come to its end" in report.problems[0].text


def test_the_streams_of_xdist_are_one_run(tmp_path: Path) -> None:
    """If it fails, each case of pytest-xdist counts twice."""
    write_stream(tmp_path / "e.gw0.jsonl", [Case("t.py::a")], collected=2)
    write_stream(tmp_path / "e.gw1.jsonl", [Case("t.py::b")], collected=2)
    write_stream(tmp_path / "e.jsonl", [Case("t.py::a", world_size=0), Case("t.py::b", world_size=0)])
    # The shell names each for `e*.jsonl`. A folder and the files in it are read once.
    for named in (
        [tmp_path],
        sorted(tmp_path.iterdir()),
        [tmp_path, *tmp_path.iterdir()],
        [*tmp_path.iterdir(), tmp_path],
    ):
        report = gather(named)
        (run,) = report.runs
        assert (sorted(_statuses(report)), run.to_come, run.is_complete) == (["t.a", "t.b"], 0, True)
        assert [case.world_size for case in run.cases] == [2, 2]


def _target(folder: Path, cases: list[Case], xml: list[CaseRecord], *, zipped: bool = False) -> Path:
    folder.mkdir(parents=True)
    write_xml(folder / "test.xml", "//a:a", xml)
    (folder / "test.log").write_text("the log", encoding="utf-8")
    outputs = folder / "test.outputs"
    write_stream(outputs / "events.jsonl.gz", cases, target="//a:a")
    (outputs / "t.bad.rank-1.log").write_text("output of rank 1", encoding="utf-8")
    if zipped:
        with zipfile.ZipFile(outputs / "outputs.zip", "w") as packed:
            for name in ("events.jsonl.gz", "t.bad.rank-1.log"):
                packed.write(outputs / name, name)
                (outputs / name).unlink()
    return folder / "test.xml"


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("by_events", [False, True])
def test_a_target_is_its_xml_its_events_and_its_logs(tmp_path: Path, zipped: bool, by_events: bool) -> None:
    """If it fails, the page lacks the ranks or the logs of a failure under Bazel."""
    both = [
        CaseRecord("t.ok", "passed", duration_s=1.0),
        CaseRecord("t.bad", "failed", duration_s=1.0, message="m", text="xml text"),
    ]
    xml = _target(tmp_path / "testlogs" / "a" / "a", [Case("t.py::ok"), FAILED], both, zipped=zipped)
    named = tmp_path / "testlogs"
    if by_events:
        named = write_build_events(tmp_path / "bep.json", build_events([Action("//a:a", xml, "FAILED")]))
    report = gather([named, tmp_path / "testlogs"] if by_events else [named])
    assert report.problems == ()
    (run,) = report.runs
    assert (run.target, len(run.cases)) == ("//a:a", 2)
    assert _cases(report)["t.bad"].ranks[1].outcome == "raised"
    logs = {log.name: log.text for log in run.logs}
    # Build events name the test.log themselves.
    assert logs.get("t.bad.rank-1.log") == "output of rank 1"
    assert by_events or logs["test.log"] == "the log"


def test_the_last_attempt_counts(tmp_path: Path) -> None:
    """If it fails, a flaky target that passed is a failure, or `ci timings` has a target that does not exist."""
    xml = _target(tmp_path / "testlogs" / "a" / "a", [Case("t.py::x")], [CaseRecord("t.x", "passed")])
    (xml.parent / "test_attempts").mkdir()
    write_xml(xml.parent / "test_attempts" / "attempt_1.xml", "a/a", [CaseRecord("t.x", "failed", message="m")])
    report = gather([tmp_path])
    assert [(run.target, run.attempt) for run in report.runs] == [("//a:a", 1), ("//a:a", 2)]
    assert [failure.recovered for failure in failures(report)] == [True]
    # Each of its folders can be read alone.
    for name in ("test.outputs", "test_attempts"):
        assert list(_cases(gather([xml.parent / name]))) == ["t.x"]


@pytest.mark.parametrize("shard", [1, 2])
def test_a_file_that_cannot_be_collected_is_one_case(tmp_path: Path, shard: int) -> None:
    """If it fails, the page shows each broken file twice, or a file that is skipped as a whole once for each shard."""
    folder = tmp_path / "testlogs" / "a" / "a" / f"shard_{shard}_of_2"
    folder.mkdir(parents=True)
    broken = CaseRecord("d/broken.py", "failed", message="E   ImportError: x", text="text", when="setup")
    skipped = [CaseRecord("d/skipped.py", "skipped", message="no GPU")] if shard == 1 else []
    write_xml(folder / "test.xml", "//a:a", [broken, *skipped])
    first, *_ = stream_events([], target="//a:a")
    reports = [
        CaseRecorded(
            101.0, CaseRecord("d/broken.py", "failed", "d/broken.py", "collect", "E   ImportError: x", "text")
        ),
        CaseRecorded(101.0, CaseRecord("d/skipped.py", "skipped", "d/skipped.py", "collect", "no GPU")),
    ]
    events = [first, *reports, TestsCollected(102.0, 3), RunEnded(103.0, 2)]
    write_events(folder / "test.outputs" / "events.jsonl.gz", events)
    report = gather([tmp_path / "testlogs"])
    assert report.problems == ()
    (run,) = report.runs
    assert run.to_come == 3
    found = [(case.name, case.status) for case in run.cases]
    assert found == [("d/broken.py", "failed"), *[("d/skipped.py", "skipped")] * len(skipped)]


def test_an_error_outside_of_the_test_is_not_the_machines(tmp_path: Path) -> None:
    """If it fails, the page says of a broken fixture that the infrastructure failed, and the run does not vote."""
    machine = (("cause", "infrastructure"),)
    cases = [
        CaseRecord("t.fixture", "failed", message="m", when="setup"),
        CaseRecord("t.machine", "failed", message="m", properties=machine, when="setup"),
    ]
    write_xml(tmp_path / "x.xml", "//a:a", cases)
    assert _statuses(gather([tmp_path])) == {"t.fixture": "failed", "t.machine": "error"}


@pytest.mark.parametrize(
    ("target", "xml", "stream", "status", "says"),
    [
        ("a", "failed", Case("t.py::ok"), "failed", "contradict"),
        ("other", "passed", FAILED, "passed", "'//a:a', and not of //a:other"),
    ],
)
def test_files_that_do_not_belong_together_are_named(
    tmp_path: Path, target: str, xml: Status, stream: Case, status: str, says: str
) -> None:
    """If it fails, a mixed folder shows a failure as green, or the ranks of another target."""
    _target(tmp_path / "testlogs" / "a" / target, [stream], [CaseRecord("t.ok", xml, message="boom")])
    report = gather([tmp_path])
    assert _statuses(report) == {"t.ok": status}
    assert says in report.problems[0].text


def test_a_file_of_a_later_run_does_not_count(tmp_path: Path) -> None:
    """If it fails, an old invocation's page shows the results of a new one."""
    xml = tmp_path / "test.xml"
    write_xml(xml, "//a:a", [CaseRecord("t.ok", "passed", duration_s=1.0)])
    events = build_events([Action("//a:a", xml)])
    finished = events[-1]["finished"]
    assert isinstance(finished, dict)
    finished["finishTime"] = datetime.fromtimestamp(os.stat(xml).st_mtime - 60, UTC).isoformat()
    report = gather([write_build_events(tmp_path / "bep.json", events)])
    assert report.runs[0].cases == ()
    assert "a later run has replaced its test.xml" in report.problems[0].text


def _remote_events(tmp_path: Path, address: str, *more: dict[str, object]) -> Path:
    result = {"testActionOutput": [{"name": "test.xml", "uri": f"bytestream://host:1/instance/{address}"}]}
    events: list[dict[str, object]] = [
        {"id": {"workspace": {}}, "workspaceInfo": {"localExecRoot": str(tmp_path)}},
        {"id": {"configuration": {"id": "c"}}, "configuration": {"mnemonic": "k8"}},
        *more,
        {"id": {"testResult": {"label": "//a:a", "configuration": {"id": "c"}}}, "testResult": result},
    ]
    return write_build_events(tmp_path / "bep.json", events)


@pytest.mark.parametrize("cached", [True, False])
def test_results_of_an_executor_with_blake3_are_found(tmp_path: Path, cached: bool) -> None:
    """If it fails, a remote run with --digest_function=BLAKE3 has no cases. Python cannot compute its digests."""
    folder = tmp_path / "bazel-out" / "k8" / "testlogs" / "a" / "a"
    folder.mkdir(parents=True)
    write_xml(folder / "test.xml", "//a:a", [CaseRecord(f"t.{'x' * 3000}", "passed", duration_s=1.0)])
    content = (folder / "test.xml").read_bytes()
    digest = "0" * 64
    more: list[dict[str, object]] = []
    if cached:
        (folder / "test.xml").unlink()
        place = tmp_path / "disk" / "blake3" / "cas" / digest[:2] / digest
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        more = [{"id": {"optionsParsed": {}}, "optionsParsed": {"cmdLine": [f"--disk_cache={tmp_path / 'disk'}"]}}]
    report = gather([_remote_events(tmp_path, f"blobs/blake3/{digest}/{len(content)}", *more)])
    assert len(report.runs[0].cases) == 1


def test_times_filter_and_revision_of_an_invocation_are_known(tmp_path: Path) -> None:
    """If it fails, flake rates mix runs of different sources."""
    options: dict[str, object] = {"id": {"optionsParsed": {}}, "optionsParsed": {"cmdLine": ["--test_filter=x y"]}}
    timed: dict[str, object] = {"testAttemptStart": "2026-11-22T10:00:00.123456789Z"}
    events = build_events([Action("//a:a", more=timed)], options, revision="abc")
    invocation = read_invocation(write_build_events(tmp_path / "bep.json", events))
    assert (invocation.revision, invocation.test_filter, invocation.began_wall_s) == ("abc", "x y", 1.7e9)
    assert invocation.attempts[0].began_wall_s == pytest.approx(1795341600.123456)


def test_values_of_other_kinds_than_bazels_end_no_report(tmp_path: Path) -> None:
    """If it fails, a number in place of a text in damaged build events ends in a traceback, or hides all results."""
    more = {"testAttemptStart": 7, "status": ["many"], "executionInfo": {"strategy": 7}}
    events = build_events([Action("//a:a", more=more, identity={"configuration": {"id": {"many": 7}}})])
    started, finished = events[0]["started"], events[-1]["finished"]
    assert isinstance(started, dict)
    assert isinstance(finished, dict)
    started["startTime"], finished["finishTime"] = 7, None
    finished["exitCode"] = {"code": "7", "name": 7}
    events += [
        {"id": {"targetCompleted": {"label": 7}}, "aborted": {"reason": "ANALYSIS_FAILURE", "description": 7}},
        {"id": {"targetCompleted": {"label": "//b:b"}}, "completed": {"failureDetail": {"message": 7}}},
        {"id": {"testSummary": {"label": "//c:c"}}, "testSummary": {"overallStatus": 7}},
        {"id": {"testResult": {"label": 7}}, "testResult": {}},
    ]
    report = gather([write_build_events(tmp_path / "bep.json", events)])
    assert [run.target for run in report.runs] == ["//a:a", "7"]
    assert [(line.target, line.reason) for line in report.not_run] == [("//b:b", "7"), ("7", "7")]
    assert all([page(report, made_wall_s=0.0), exported(report), list(votes(report))])


def _write(name: str, content: bytes | str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def _cut_gzip(folder: Path) -> Path:
    whole = write_stream(folder / "whole.jsonl.gz", [Case(f"t.py::a{number}") for number in range(50)])
    return _write("cut.jsonl.gz", whole.read_bytes()[:-200])(folder)


def _too_deep(folder: Path) -> Path:
    """Make a folder that no path reaches; root may read all others."""
    with contextlib.chdir(folder):
        for _ in range(17):
            os.mkdir("x" * 250)
            os.chdir("x" * 250)
    return folder


def _loop(folder: Path) -> Path:
    (folder / "test.xml").symlink_to("test.xml")
    return folder


# Bazel's output was cut off before the last line of the chain.
_CHAIN = (
    "errors encountered while analyzing target '//a:a', it will not be built.\nx\nDependency chain:"
    + "\n    //b" * 3000
)
_ENTITIES = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x" * 100}">' for n in range(12))


# Other files that are no event streams are in tests/unit/test_event_file.py, and no XML of JUnit in test_junit.py.
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_write("e.jsonl", ""), "contains no event"),
        (_cut_gzip, "did not come to its end"),
        (_write("x.json", '{"id": {}}\nnot json\n{"id": {}}\n'), "not a file of build events"),
        (_write("x.json", '{"id": {"testResult": 7}, "testResult": {}}\n'), "does not have Bazel's form"),
        (_write("x.json", '{"id": {"started": {}}, "started": ["many"]}\n'), "Bazel's form"),
        (_write("x.json", '{"id": {"started": {}}}\n'), "incomplete after 0 results"),
        # A pattern that tries all ways to split the lines would never end.
        (_write("x.json", json.dumps({"id": {"started": {}}, "progress": {"stderr": _CHAIN}})), "after 0 results"),
        (_write("x.json", '{"id": {"started": %s' % ("[" * 100_000)), "not a file of build events"),
        (_write("x.json", '{"foreign": 1}\n'), "neither build events"),
        (_write("x.json", ""), "neither build events"),
        (_write("x.xml", "<html></html>"), "the root element is <html>"),
        (_write("x.xml", f"<!DOCTYPE t [{_ENTITIES}]><testsuite name='&e11;'/>"), "cannot be read as XML"),
        # Elements in elements: nothing is wrong, and nothing is there.
        (_write("x.xml", "<testsuite>" * 20_000 + "</testsuite>" * 20_000), ""),
        (_write("x.bin", os.urandom(1000)), "neither build events"),
        (lambda folder: folder, "has no results in it"),
        (_too_deep, "File name too long"),
        (_loop, "Too many levels of symbolic links"),
        (lambda folder: folder / "no" / "where", "there is no such file or folder"),
        (lambda folder: folder / ("x" * 5000), "cannot be read"),
    ],
)
def test_bad_input_is_a_clear_text_and_the_rest_is_still_read(
    tmp_path: Path, make: Callable[[Path], Path], says: str
) -> None:
    """If it fails, one damaged file hides all results of its folder, or ends in a traceback."""
    folder = tmp_path / "bad"
    folder.mkdir()
    bad = make(folder)
    write_stream(tmp_path / "good.jsonl", [Case("t.py::good")])
    report = gather([bad, tmp_path])
    assert any(says in problem.text for problem in report.problems) or not says, report.problems
    assert all("Traceback" not in problem.text for problem in report.problems)
    assert _statuses(report)["t.good"] == "passed"
    # In a folder, foreign JSON is no result that is damaged.
    assert says != "neither build events" or len(report.problems) == 1


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """If it fails, a log that a clean-up has removed hides the failure, or is missing without a word."""
    xml = _target(
        tmp_path / "testlogs" / "a" / "a",
        [FAILED],
        [CaseRecord("t.bad", "failed", message="m", text="text")],
    )
    (xml.parent / "test.outputs" / "t.bad.rank-0.log").symlink_to(tmp_path / "gone")
    report = gather([tmp_path])
    assert _statuses(report) == {"t.bad": "failed"}
    (problem,) = report.problems
    assert problem.text.startswith("the log t.bad.rank-0.log cannot be read: No such file or directory.")
    assert {log.name for log in report.runs[0].logs} == {"test.log", "t.bad.rank-1.log"}


@pytest.mark.parametrize(
    ("limit", "name", "content", "says"),
    [
        ("result_xml._MAX_BYTES", "x.xml", b"<testsuites>%s</testsuites>" % (b" " * 99), "at most 0 MiB are read"),
        ("build_events._MAX_BYTES", "x.json", b'{"id": {"started": {}}}\n' + b" " * 99, "at most 0 MiB are read"),
        ("gather._MAX_FILES", "x.txt", b"", "it has 99 files or more"),
    ],
)
def test_enormous_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, name: str, content: bytes, says: str
) -> None:
    """If it fails, one file takes all memory, or a folder such as / keeps the command busy for hours."""
    monkeypatch.setattr(f"dist_testing.report.{limit}", 99)
    for number in range(99):
        (tmp_path / f"{number}{name}").write_bytes(content)
    assert says in gather([tmp_path]).problems[0].text


def test_a_small_archive_with_an_enormous_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, a hostile archive fills the disk."""
    monkeypatch.setattr("dist_testing.report.run_files._MAX_MEMBER_BYTES", 1 << 20)
    xml = _target(tmp_path / "testlogs" / "a" / "a", [], [CaseRecord("t.ok", "passed", duration_s=1.0)])
    archive = xml.parent / "test.outputs" / "outputs.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("events.jsonl.gz", bytes(3 << 20))
    report = gather([tmp_path])
    assert "events.jsonl.gz has 3 MiB" in report.problems[0].text
    assert _statuses(report) == {"t.ok": "passed"}
