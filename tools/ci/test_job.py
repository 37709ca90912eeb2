"""The summary and the exit status of a CI job, for every way in which Bazel can end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bazel_process import INTERRUPTED, run_bazel
from job import main

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.ground.record import CaseRecord

PASSED = CaseRecord("c.ok", "passed", duration_s=1.0)
FAILED = CaseRecord("c.bad", "failed", duration_s=1.0, message="rank 1 raised ValueError")
SKIPPED = CaseRecord("c.gpu", "skipped", message="Need at least 2 CUDA devices")
NASTY = CaseRecord("c.gpu", "skipped", message="no GPU\n::error::x")

Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class Target:
    """The results that the stand-in for Bazel reports for a target."""

    label: str
    cases: Sequence[CaseRecord] = (PASSED,)
    status: str = "PASSED"
    has_xml: bool = True
    cached: str = ""


GOOD = Target("//a:a")
LOST = Target("//a:b", [], "NO_STATUS", has_xml=False)

# Does what its next turn says: prints a text, writes build events to the given file, exits. The call that asks the
# executor for an answer is not a turn.
_BAZEL = f"""#!{sys.executable}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
turns = json.loads((here / "turns.json").read_text())
kind = "probe" if "--remote_retries=1" in sys.argv else "calls"
with (here / kind).open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + chr(10))
if kind == "probe":
    status, says, events = turns[0]
else:
    status, says, events = turns.pop(1)
    (here / "turns.json").write_text(json.dumps(turns))
file = [argument for argument in sys.argv if argument.startswith("--build_event_json_file=")][-1]
if events is not None:
    pathlib.Path(file.partition("=")[2]).write_text(events)
sys.stderr.write(says)
sys.exit(status)
"""
# How the call ends that asks the executor for an answer: there is none, or it has answered, and no test was named.
_ANSWERED = (4, "", None)


def _lines(events: Sequence[Event]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


@dataclass(frozen=True, slots=True)
class Ended:
    """A CI job that has ended, with the command lines of its Bazel."""

    status: int
    out: str
    err: str
    calls: list[str]
    questions: list[str]

    @property
    def last(self) -> str:
        """The last line of its output."""
        return self.out.splitlines()[-1]


@dataclass(frozen=True, slots=True)
class Job:
    """A CI job with a stand-in for Bazel."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def events(self, status: int, name: str, *targets: Target, is_complete: bool = True) -> list[Event]:
        """Return the build events of an invocation."""
        events: list[Event] = [{"id": {"started": {}}, "started": {}}]
        for number, target in enumerate(targets):
            outputs = []
            if target.has_xml:
                file = self.folder / f"{number}" / "test.xml"
                file.parent.mkdir(exist_ok=True)
                write_xml(file, target.label, target.cases)
                outputs.append({"name": "test.xml", "uri": file.as_uri()})
            result: Event = {"testActionOutput": outputs, "status": target.status}
            result |= {"testAttemptDuration": "1.5s", "cachedLocally": target.cached == "local"}
            events.append({"id": {"testResult": {"label": target.label}}, "testResult": result})
            summary = {"overallStatus": target.status}
            events.append({"id": {"testSummary": {"label": target.label}}, "testSummary": summary})
        if is_complete:
            events.append({"id": {"buildFinished": {}}, "finished": {"exitCode": {"name": name, "code": status}}})
            events.append({"id": {"progress": {}}, "lastMessage": True})
        return events

    def run(
        self,
        *turns: tuple[int, Sequence[Event] | str | None],
        arguments: Sequence[str] = (),
        probe: tuple[int, str, str | None] = _ANSWERED,
    ) -> Ended:
        """Run a job whose invocations end with the given exit statuses and build events."""
        contents: list[object] = [probe]
        for status, events in turns:
            contents.append([status, "", _lines(events) if isinstance(events, list) else events])
        (self.folder / "turns.json").write_text(json.dumps(contents), encoding="utf-8")
        status = main([f"--bazel={self.folder / 'bazel'}", *arguments])
        told = self.capsys.readouterr()
        calls, questions = (
            file.read_text(encoding="utf-8").splitlines() if (file := self.folder / name).exists() else []
            for name in ("calls", "probe")
        )
        return Ended(status, told.out, told.err, calls, questions)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Job:
    """A job whose Bazel has no turns."""
    folder = tmp_path / "bazel"
    folder.mkdir()
    (folder / "bazel").write_text(_BAZEL, encoding="utf-8")
    (folder / "bazel").chmod(0o755)
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(folder))
    # pytest's own folder must stay clean; a job of Bazel has the folder of its call here.
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(folder))
    return Job(folder, capsys)


@pytest.mark.parametrize(
    ("status", "name", "targets", "expected", "said"),
    [
        (0, "SUCCESS", [GOOD], 0, "green: every selected test has passed"),
        # The status is Bazel's.
        (3, "TESTS_FAILED", [GOOD, Target("//a:b", [PASSED, FAILED], "FAILED")], 3, "Bazel says TESTS_FAILED"),
        (3, "TESTS_FAILED", [Target("//a:a", [], "TIMEOUT", has_xml=False)], 3, "Bazel says TESTS_FAILED"),
        (1, "BUILD_FAILURE", [], 1, "Bazel says BUILD_FAILURE"),
        (2, "COMMAND_LINE_ERROR", [], 2, "Bazel says COMMAND_LINE_ERROR"),
        (4, "NO_TESTS_FOUND", [], 4, "Bazel says NO_TESTS_FOUND"),
        (8, "INTERRUPTED", [GOOD], 8, "Bazel says INTERRUPTED"),
        # Without results a job is not green.
        (0, "SUCCESS", [GOOD, Target("//a:b", [SKIPPED])], 1, "1 target(s) ran no case"),
        # Texts of tests end no line, and a strict output can print them.
        (0, "SUCCESS", [Target("//a:\udce9", [NASTY])], 1, "1 target(s) ran no case"),
        (0, "SUCCESS", [Target("//a:a", [])], 1, "1 target(s) ran no case"),
        (
            0,
            "SUCCESS",
            [Target("//a:a", has_xml=False)],
            1,
            "the results of 1 target(s) cannot be read on this machine",
        ),
        (0, "SUCCESS", [], 1, "no test ran"),
        (0, "SUCCESS", [Target("//a:a", status="NO_STATUS")], 1, "1 target(s) did not pass, although Bazel's exit"),
        # A failed test, and an executor that has done nothing in this job, are not tried again.
        (34, "REMOTE_ERROR", [Target("//a:a", [FAILED], "FAILED")], 34, "the remote executor failed"),
        (34, "REMOTE_ERROR", [LOST], 34, "the remote executor failed"),
        (34, "REMOTE_ERROR", [Target("//a:a", cached="local")], 34, "the remote executor failed"),
    ],
)
def test_a_job_ends_as_bazel_and_its_results_say(
    job: Job, status: int, name: str, targets: Sequence[Target], expected: int, said: str
) -> None:
    """If it fails, CI is green without tests, red without a reason, or repeats a test until it passes."""
    ended = job.run((status, job.events(status, name, *targets)))
    assert (ended.status, len(ended.calls)) == (expected, 1)
    assert ended.last.startswith(f"ci: exit status {expected}: {said}" if expected else f"ci: {said}")
    assert "\n::" not in ended.out


@pytest.mark.parametrize(
    ("given", "call"),
    [
        ([], r"EVENTS //\.\.\."),
        (["//a"], "//a EVENTS"),
        (["-k", "--config=x"], r"-k --config=x EVENTS //\.\.\."),
        (["--"], r"EVENTS -- //\.\.\."),
        (["-k", "--"], r"-k EVENTS -- //\.\.\."),
        (["--", "-//a"], "EVENTS -- -//a"),
        (["--target_pattern_file=a"], "--target_pattern_file=a EVENTS"),
        (["//a:a", "--test_filter=a b", "--attempts=1", "--", "-//a:b"], "//a:a --test_filter=a b EVENTS -- -//a:b"),
    ],
)
def test_flags_and_targets_reach_bazel_as_they_are(job: Job, given: list[str], call: str) -> None:
    """If it fails, a CI job runs other tests than its command line names, or the question asks about them."""
    ended = job.run((0, job.events(0, "SUCCESS", GOOD)), arguments=given)
    expected = call.replace("EVENTS", r"--build_event_json_file=\S+")
    assert re.fullmatch(f"test --config=ci {expected}", ended.calls[0])
    passed_on = ("-k", "--config=x", "--test_filter=a b", "--target_pattern_file=a")
    flags = "".join(f" {flag}" for flag in given if flag in passed_on)
    assert ended.questions[0].startswith(f"test --config=ci{flags} --remote_timeout=")
    assert "//a" not in ended.questions[0]


def test_a_job_ends_with_a_page_of_its_results(job: Job) -> None:
    """If it fails, a red job is only a terminal page, which users cannot open, search or keep."""
    events = job.events(3, "TESTS_FAILED", GOOD, Target("//a:b", [PASSED, FAILED], "FAILED"))
    page = job.folder / "bazel-report.html"
    assert f"page: {page} (" in job.run((3, events)).out
    text = page.read_text(encoding="utf-8")
    assert "1 failed" in text
    assert "rank 1 raised ValueError" in text


@pytest.mark.parametrize("status", [0, 37])
def test_incomplete_events_are_not_green(job: Job, status: int) -> None:
    """If it fails, a CI job whose Bazel was killed half way is green."""
    ended = job.run((status, job.events(0, "SUCCESS", GOOD, is_complete=False)))
    assert ended.status == (status or 1)
    assert ended.last.endswith("the build events are incomplete")


@pytest.mark.parametrize(("status", "expected"), [(0, 1), (2, 2), (37, 37)])
@pytest.mark.parametrize("events", [None, "", "what is this"])
def test_without_events_there_is_an_error_and_no_summary(
    job: Job, tmp_path: Path, status: int, expected: int, events: str | None
) -> None:
    """If it fails, a Bazel that did not start has passed, perhaps with the results of an earlier run."""
    kept = tmp_path / "kept.json"
    kept.write_text(_lines(job.events(0, "SUCCESS", Target("//a:old"))), encoding="utf-8")
    ended = job.run((status, events), arguments=[f"--events={kept}"])
    assert ended.status == expected
    assert ended.out.startswith(f"ci: exit status {expected}: Bazel ended with {status} and without build events")
    assert "no results" in ended.err


def test_failed_infrastructure_is_tried_again(job: Job) -> None:
    """If it fails, an executor that restarts makes every CI job red, or a job without an executor runs for ever."""
    lost = (39, job.events(39, "REMOTE_CACHE_EVICTED"))
    ended = job.run(lost, (0, job.events(0, "SUCCESS", GOOD)))
    assert (ended.status, len(ended.calls)) == (0, 2)
    assert "remote outputs were lost; attempt 2 of 3" in ended.err
    gone = (34, job.events(34, "REMOTE_ERROR", GOOD, LOST))
    ended = job.run(gone, gone, arguments=["--attempts=2"])
    assert (ended.status, len(ended.calls)) == (34, 4)
    assert ended.last.startswith("ci: exit status 34: the remote executor failed")


def _broken(**completed: object) -> Event:
    return {"id": {"targetCompleted": {"label": "//a:b"}}, **completed}


@pytest.mark.parametrize(
    ("event", "calls"),
    [
        (_broken(completed={"failureDetail": {"message": "gcc failed", "spawn": {"code": "NON_ZERO_EXIT"}}}), 1),
        (_broken(completed={}), 1),
        (_broken(aborted={"reason": "ANALYSIS_FAILURE"}), 1),
        (_broken(completed={"failureDetail": {"message": "lost", "spawn": {"code": "REMOTE_CACHE_EVICTED"}}}), 2),
        (_broken(aborted={"reason": "INCOMPLETE"}), 2),
    ],
)
def test_a_target_that_does_not_build_is_not_tried_again_unless_the_executor_has_broken_it(
    job: Job, event: Event, calls: int
) -> None:
    """If it fails, a syntax error is built three times, or an executor that restarts makes the CI job red."""
    lost = (39, [event, *job.events(39, "REMOTE_CACHE_EVICTED")])
    ended = job.run(lost, (0, job.events(0, "SUCCESS", GOOD)))
    assert (ended.status, len(ended.calls)) == (39 if calls == 1 else 0, calls)


# Messages and events of Bazel 7.7 for an address where nothing answers.
_SILENCE = (
    "ERROR: No test targets were found, yet testing was requested\n"
    "(13:58:05) ERROR: Failed to query remote execution capabilities: DEADLINE_EXCEEDED: deadline exceeded after 4.0s. "
    "[closed=[], open=[[buffered_nanos=3998417305, waiting_for_connection]]]\n"
    "ERROR: Unable to write all BEP events to file due to 'java.io.IOException: ...'\n"
)


def _options(label: str, **values: str) -> Event:
    options = [{"optionName": name, "optionValue": value} for name, value in values.items()]
    line = {"commandLineLabel": label, "sections": [{"chunkList": {}}, {"optionList": {"option": options}}]}
    return {"id": {"structuredCommandLine": {}}, "structuredCommandLine": line}


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"remote_executor": "grpc://10.0.0.1:7"}, "grpc://10.0.0.1:7"),
        ({"remote_cache": "grpcs://cache"}, "grpcs://cache"),
        (None, "an unknown address"),
    ],
)
def test_an_executor_that_does_not_answer_is_an_error_before_the_job(
    job: Job, options: dict[str, str] | None, address: str
) -> None:
    """If it fails, a CI job hangs for an hour at an address behind a firewall, or old events count as its results."""
    kept = job.folder / "kept.json"
    kept.touch()
    events = [_options("original", remote_executor="grpc://elsewhere"), _options("canonical", **(options or {}))]
    probe = (38, _SILENCE, _lines(events) if options is not None else None)
    ended = job.run(arguments=[f"--events={kept}"], probe=probe)
    assert (ended.status, ended.calls, kept.exists()) == (34, [], False)
    assert ended.out == "ci: exit status 34: attempt 1 was not started\n"
    _, *lines = ended.err.splitlines()
    assert len(lines) == 3
    why = "DEADLINE_EXCEEDED: deadline exceeded after 4.0s"
    assert lines[0] == f"ci: {address}: the remote executor cannot be used: {why}."


def test_events_that_cannot_be_written_are_not_the_fault_of_an_executor_that_is_not_there(job: Job) -> None:
    """If it fails, a full disk is reported as a failed remote executor that does not exist."""
    probe = (38, "ERROR: Unable to write all BEP events", _lines([_options("canonical")]))
    ended = job.run((38, None), probe=probe)
    assert (ended.status, len(ended.calls)) == (38, 1)


@pytest.mark.parametrize("method", ["__init__", "wait"])
def test_a_stop_ends_bazel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str) -> None:
    """If it fails, a cancelled CI job waits for its Bazel, or starts one, or this process ignores later signals."""
    original = getattr(subprocess.Popen, method)

    def stopped(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments, **options)

    monkeypatch.setattr(subprocess.Popen, method, stopped)
    before = signal.getsignal(signal.SIGTERM)
    command = "import pathlib, time; time.sleep(30); pathlib.Path('ended').touch()"
    assert run_bazel([sys.executable, "-c", command], tmp_path) == INTERRUPTED
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("option", "said"),
    [("--bazel=/nowhere/bazel", "/nowhere/bazel cannot be started"), ("--events=.", "no place for build events")],
)
def test_a_wrong_path_is_an_error(job: Job, option: str, said: str) -> None:
    """If it fails, a wrong option is a traceback."""
    ended = job.run(arguments=[option])
    assert ended.status == 1
    assert said in ended.err
