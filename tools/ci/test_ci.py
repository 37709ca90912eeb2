"""The summary and the exit status of a CI job, for every way in which Bazel can end."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bazel_process import INTERRUPTED, run_bazel
from ci import main

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.ground.record import CaseRecord

PASSED = CaseRecord("c.ok", "passed", duration_s=1.0)
FAILED = CaseRecord("c.bad", "failed", duration_s=1.0, message="rank 1 raised ValueError")
SKIPPED = CaseRecord("c.gpu", "skipped", message="Need at least 2 CUDA devices")


@dataclass(frozen=True, slots=True)
class Target:
    """The results that the stand-in for Bazel reports for a target."""

    label: str
    cases: Sequence[CaseRecord] = (PASSED,)
    status: str = "PASSED"
    has_xml: bool = True
    cached: str = ""


# Does what its next turn says: prints a text, writes build events to the given file, exits. The call that asks the
# executor for an answer is not a turn.
_BAZEL = """\
#!/usr/bin/env python3
import json, pathlib, sys
here = pathlib.Path(__file__).parent
kind = "probes" if "--remote_retries=1" in sys.argv else "turns"
turns = json.loads((here / f"{kind}.json").read_text())
turn = turns.pop(0)
(here / f"{kind}.json").write_text(json.dumps(turns))
with (here / ("calls" if kind == "turns" else "questions")).open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + chr(10))
events = [argument for argument in sys.argv if argument.startswith("--build_event_json_file=")][-1]
if turn["events"] is not None:
    pathlib.Path(events.partition("=")[2]).write_text(turn["events"])
sys.stderr.write(turn["says"])
sys.exit(turn["status"])
"""
# Bazel's exit status if there is nothing to test: there is no executor, or it has answered.
_NO_TESTS = 4


@dataclass(frozen=True, slots=True)
class Bazel:
    """A stand-in for Bazel with given results."""

    folder: Path

    @property
    def program(self) -> Path:
        """The program to start."""
        return self.folder / "bazel"

    def calls(self) -> list[str]:
        """The command lines."""
        return self._lines("calls")

    def questions(self) -> list[str]:
        """The command lines of the calls that ask the executor for an answer."""
        return self._lines("questions")

    def _lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def events(
        self, targets: Sequence[Target], status: int, name: str, *, is_complete: bool = True
    ) -> list[dict[str, object]]:
        """Return the build events of an invocation."""
        events: list[dict[str, object]] = [{"id": {"started": {}}, "started": {}}]
        for number, target in enumerate(targets):
            outputs = []
            if target.has_xml:
                file = self.folder / f"{number}" / "test.xml"
                file.parent.mkdir(exist_ok=True)
                write_xml(file, target.label, target.cases)
                outputs.append({"name": "test.xml", "uri": file.as_uri()})
            result: dict[str, object] = {"testActionOutput": outputs, "status": target.status}
            result |= {"testAttemptDuration": "1.5s", "cachedLocally": target.cached == "local"}
            events.append({"id": {"testResult": {"label": target.label}}, "testResult": result})
            summary = {"overallStatus": target.status}
            events.append({"id": {"testSummary": {"label": target.label}}, "testSummary": summary})
        if is_complete:
            events.append({"id": {"buildFinished": {}}, "finished": {"exitCode": {"name": name, "code": status}}})
            events.append({"id": {"progress": {}}, "lastMessage": True})
        return events


@pytest.fixture
def bazel(tmp_path: Path) -> Bazel:
    """A stand-in without turns."""
    bazel = Bazel(tmp_path / "bazel")
    bazel.folder.mkdir()
    bazel.program.write_text(_BAZEL, encoding="utf-8")
    bazel.program.chmod(bazel.program.stat().st_mode | stat.S_IXUSR)
    return bazel


@dataclass(frozen=True, slots=True)
class Probe:
    """How the call ends that asks the executor for an answer."""

    status: int = _NO_TESTS
    says: str = ""
    events: str | None = None


def _text(events: list[dict[str, object]] | str | None) -> str | None:
    if events is None or isinstance(events, str):
        return events
    return "".join(json.dumps(event) + "\n" for event in events)


Run = Callable[..., int]


@pytest.fixture
def run(bazel: Bazel, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a CI job whose invocations end with the given exit statuses and build events."""
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(bazel.folder))
    # pytest's own folder must stay clean; a job of Bazel has the folder of its call here.
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(bazel.folder))

    def run(
        *turns: tuple[int, list[dict[str, object]] | str | None],
        arguments: Sequence[str] = (),
        probes: Sequence[Probe] = (),
    ) -> int:
        contents = [{"status": status, "events": _text(events), "says": ""} for status, events in turns]
        (bazel.folder / "turns.json").write_text(json.dumps(contents), encoding="utf-8")
        answers = [*probes, *[Probe()] * (len(turns) + 1)]
        contents = [{"status": one.status, "events": one.events, "says": one.says} for one in answers]
        (bazel.folder / "probes.json").write_text(json.dumps(contents), encoding="utf-8")
        return main([f"--bazel={bazel.program}", *arguments])

    return run


def _last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_a_green_job_is_green(bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, a correct change cannot be merged."""
    assert run((0, bazel.events([Target("//a:a")], 0, "SUCCESS"))) == 0
    assert _last_line(capsys) == "ci: green: every selected test has passed"
    (call,) = bazel.calls()
    assert re.fullmatch(r"test --config=ci --build_event_json_file=\S+ //\.\.\.", call)


def test_flags_and_targets_reach_bazel_as_they_are(bazel: Bazel, run: Run) -> None:
    """If it fails, a CI job runs other tests than its command line names."""
    arguments = ["--config=rbe_local", "//a:a", "--test_filter=a b", "--attempts=1", "--", "-//a:b"]
    assert run((0, bazel.events([Target("//a:a")], 0, "SUCCESS")), arguments=arguments) == 0
    (call,) = bazel.calls()
    start = "test --config=ci --config=rbe_local"
    assert re.fullmatch(f"{start} //a:a --test_filter=a b --build_event_json_file=\\S+ -- -//a:b", call)
    (question,) = bazel.questions()
    assert question.startswith(f"{start} --test_filter=a b --remote_timeout=")
    assert "//a" not in question


@pytest.mark.parametrize(
    ("given", "is_all"),
    [
        (["//a"], False),
        (["-k", "--config=x"], True),
        ([], True),
        (["--"], True),
        (["-k", "--"], True),
        (["--", "-//a"], False),
    ],
)
def test_without_a_target_all_are_tested(bazel: Bazel, run: Run, given: list[str], is_all: bool) -> None:
    """If it fails, one target of a package becomes the whole repository, or the reverse."""
    assert run((0, bazel.events([Target("//a:a")], 0, "SUCCESS")), arguments=given) == 0
    assert bazel.calls()[0].endswith(" //...") is is_all


@pytest.mark.parametrize(
    ("status", "name", "targets"),
    [
        (3, "TESTS_FAILED", [Target("//a:a"), Target("//a:b", [PASSED, FAILED], "FAILED")]),
        (3, "TESTS_FAILED", [Target("//a:a", [], "TIMEOUT", has_xml=False)]),
        (1, "BUILD_FAILURE", []),
        (2, "COMMAND_LINE_ERROR", []),
        (4, "NO_TESTS_FOUND", []),
        (8, "INTERRUPTED", [Target("//a:a")]),
    ],
)
def test_the_exit_status_is_that_of_bazel(
    bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str], status: int, name: str, targets: Sequence[Target]
) -> None:
    """If it fails, CI is green without tests."""
    assert run((status, bazel.events(targets, status, name))) == status
    assert _last_line(capsys) == f"ci: exit status {status}: Bazel says {name}"
    assert len(bazel.calls()) == 1


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        ([Target("//a:a"), Target("//a:b", [SKIPPED])], "1 target(s) ran no case"),
        ([Target("//a:a", [])], "1 target(s) ran no case"),
        ([Target("//a:a", has_xml=False)], "the results of 1 target(s) cannot be read on this machine"),
        ([], "no test ran"),
        ([Target("//a:a", status="NO_STATUS")], "1 target(s) did not pass, although Bazel's exit status is 0"),
    ],
)
def test_a_job_without_results_is_not_green(
    bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str], targets: Sequence[Target], reason: str
) -> None:
    """If it fails, a CI job in which nothing ran looks like one in which everything passed."""
    assert run((0, bazel.events(targets, 0, "SUCCESS"))) == 1
    assert _last_line(capsys) == f"ci: exit status 1: {reason}"


def test_a_job_ends_with_a_page_of_its_results(bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, a red job is only a terminal page, which users cannot open, search or keep."""
    events = bazel.events([Target("//a:a"), Target("//a:b", [PASSED, FAILED], "FAILED")], 3, "TESTS_FAILED")
    assert run((3, events)) == 3
    page = bazel.folder / "bazel-report.html"
    assert f"page: {page} (" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "1 failed" in text
    assert "rank 1 raised ValueError" in text


@pytest.mark.parametrize("status", [0, 37])
def test_incomplete_events_are_not_green(
    bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    """If it fails, a CI job whose Bazel was killed half way is green."""
    assert run((status, bazel.events([Target("//a:a")], 0, "SUCCESS", is_complete=False))) == (status or 1)
    assert _last_line(capsys).endswith("the build events are incomplete")


@pytest.mark.parametrize(("status", "expected"), [(0, 1), (2, 2), (37, 37)])
@pytest.mark.parametrize("events", [None, "", "what is this"])
def test_without_events_there_is_an_error_and_no_summary(
    run: Run, capsys: pytest.CaptureFixture[str], status: int, expected: int, events: str | None
) -> None:
    """If it fails, a Bazel that did not start has passed, or a wrong flag has the status of a failed build."""
    assert run((status, events)) == expected
    captured = capsys.readouterr()
    assert captured.out.startswith(f"ci: exit status {expected}: ")
    assert "no results" in captured.err


def test_events_of_an_earlier_run_do_not_count(
    bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """If it fails, the summary of a Bazel that did not start shows another run's results."""
    kept = tmp_path / "kept.json"
    kept.write_text(_text(bazel.events([Target("//a:old")], 0, "SUCCESS")) or "", encoding="utf-8")
    assert run((2, None), arguments=[f"--events={kept}"]) == 2
    assert capsys.readouterr().out.startswith("ci: exit status 2: Bazel ended with 2 and without build events")


def test_failed_infrastructure_is_tried_again(bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, an executor that restarts makes every CI job red."""
    lost = (39, bazel.events([], 39, "REMOTE_CACHE_EVICTED"))
    good = (0, bazel.events([Target("//a:a")], 0, "SUCCESS"))
    assert run(lost, good) == 0
    assert len(bazel.calls()) == 2
    assert "remote outputs were lost; attempt 2 of 3" in capsys.readouterr().err


def test_infrastructure_that_stays_away_is_an_error(bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, a CI job without an executor runs for ever, or is green."""
    lost = (34, bazel.events([Target("//a:a"), Target("//a:b", [], "NO_STATUS", has_xml=False)], 34, "REMOTE_ERROR"))
    assert run(lost, lost, arguments=["--attempts=2"]) == 34
    assert len(bazel.calls()) == 2
    assert _last_line(capsys).startswith("ci: exit status 34: the remote executor failed")


@pytest.mark.parametrize(
    "targets",
    [[Target("//a:a", [], "NO_STATUS", has_xml=False)], [Target("//a:a", cached="local")]],
    ids=["nothing", "only what was there before"],
)
def test_an_executor_that_has_done_nothing_is_not_asked_again(
    bazel: Bazel, run: Run, targets: Sequence[Target]
) -> None:
    """If it fails, a pool that refuses every action makes the CI job take three times as long."""
    assert run((34, bazel.events(targets, 34, "REMOTE_ERROR"))) == 34
    assert len(bazel.calls()) == 1


def _broken(**completed: object) -> dict[str, object]:
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
    bazel: Bazel, run: Run, event: dict[str, object], calls: int
) -> None:
    """If it fails, a syntax error is built three times, or an executor that restarts makes the CI job red."""
    lost = (39, [event, *bazel.events([], 39, "REMOTE_CACHE_EVICTED")])
    good = (0, bazel.events([Target("//a:a")], 0, "SUCCESS"))
    assert run(lost, good) == (39 if calls == 1 else 0)
    assert len(bazel.calls()) == calls


# Messages and events of Bazel 7.7 for an address where nothing answers.
_SILENCE = (
    "ERROR: No test targets were found, yet testing was requested\n"
    "(13:58:05) ERROR: Failed to query remote execution capabilities: DEADLINE_EXCEEDED: deadline exceeded after 4.0s. "
    "[closed=[], open=[[buffered_nanos=3998417305, waiting_for_connection]]]\n"
    "ERROR: Unable to write all BEP events to file due to 'java.io.IOException: ...'\n"
)


def _options(label: str, **values: str) -> dict[str, object]:
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
    bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str], options: dict[str, str] | None, address: str
) -> None:
    """If it fails, a CI job hangs for an hour at an address behind a firewall, and does not name it."""
    events = [_options("original", remote_executor="grpc://elsewhere"), _options("canonical", **(options or {}))]
    probe = Probe(38, _SILENCE, _text(events) if options is not None else None)
    assert run(probes=[probe]) == 34
    assert bazel.calls() == []
    captured = capsys.readouterr()
    assert captured.out == "ci: exit status 34: attempt 1 was not started\n"
    _, *lines = captured.err.splitlines()
    assert len(lines) == 3
    why = "DEADLINE_EXCEEDED: deadline exceeded after 4.0s"
    assert lines[0] == f"ci: {address}: the remote executor cannot be used: {why}."


def test_events_that_cannot_be_written_are_not_the_fault_of_an_executor_that_is_not_there(
    bazel: Bazel, run: Run
) -> None:
    """If it fails, a full disk is reported as a failed remote executor that does not exist."""
    assert (
        run((38, None), probes=[Probe(38, "ERROR: Unable to write all BEP events", _text([_options("canonical")]))])
        == 38
    )
    assert len(bazel.calls()) == 1


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal stops the CI job while a process is being started."""
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGTERM)
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.mark.usefixtures("stopped")
def test_a_stop_that_comes_before_bazel_ends_it(tmp_path: Path) -> None:
    """If it fails, a cancelled CI job runs to its end on a machine that other jobs wait for."""
    job = "import pathlib, time; time.sleep(10); pathlib.Path('ended').touch()"
    assert run_bazel([sys.executable, "-c", job], tmp_path) == INTERRUPTED
    assert list(tmp_path.iterdir()) == []


def test_a_failed_test_is_not_tried_again_with_the_infrastructure(bazel: Bazel, run: Run) -> None:
    """If it fails, a test that fails every other time is green on the second attempt."""
    events = bazel.events([Target("//a:a", [FAILED], "FAILED")], 34, "REMOTE_ERROR")
    assert run((34, events)) == 34
    assert len(bazel.calls()) == 1


def test_a_bazel_that_is_not_there_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it fails, a wrong --bazel is a traceback."""
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(tmp_path))
    assert main(["--bazel=/nowhere/bazel"]) == 1
    assert "/nowhere/bazel cannot be started" in capsys.readouterr().err


def test_a_stop_ends_a_bazel_that_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it fails, a cancelled CI job waits for its Bazel, or this process ignores later signals."""

    class Told(subprocess.Popen[bytes]):
        """Bazel, in a CI job that gets SIGTERM while it waits."""

        def wait(self, timeout: float | None = None) -> int:
            """Send the signal, then wait."""
            signal.raise_signal(signal.SIGTERM)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Told)
    before = signal.getsignal(signal.SIGTERM)
    job = "import pathlib, time; time.sleep(30); pathlib.Path('ended').touch()"
    assert run_bazel([sys.executable, "-c", job], tmp_path) == INTERRUPTED
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before
