"""The summary and the exit status of a lane, for everything that Bazel can end with."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from build_events import Attempt, Invocation
from ci import has_targets, main
from summary import summarise, summary_lines

from dist_testing.runner.junit import XmlCase, write_xml

PASSED = XmlCase("c", "ok", "passed", 1.0)
FAILED = XmlCase("c", "bad", "failed", 1.0, message="rank 1 raised ValueError")
SKIPPED = XmlCase("c", "gpu", "skipped", 0.0, message="Need at least 2 CUDA devices")


@dataclass(frozen=True, slots=True)
class Target:
    """What the stand-in for Bazel says of a target."""

    label: str
    cases: Sequence[XmlCase] = (PASSED,)
    status: str = "PASSED"
    has_xml: bool = True


# Writes the events of its next turn where it is told to, and ends as they say.
_BAZEL = """\
#!/usr/bin/env python3
import json, pathlib, shutil, sys
here = pathlib.Path(__file__).parent
turns = json.loads((here / "turns.json").read_text())
turn = turns.pop(0)
(here / "turns.json").write_text(json.dumps(turns))
with (here / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + chr(10))
events = next(argument for argument in sys.argv if argument.startswith("--build_event_json_file="))
if turn["events"] is not None:
    pathlib.Path(events.partition("=")[2]).write_text("".join(json.dumps(event) + chr(10) for event in turn["events"]))
sys.exit(turn["status"])
"""


@dataclass(frozen=True, slots=True)
class Bazel:
    """Stands for Bazel, whose results are given to it."""

    folder: Path

    @property
    def program(self) -> Path:
        """What is started."""
        return self.folder / "bazel"

    def calls(self) -> list[str]:
        """The command lines."""
        return (self.folder / "calls").read_text(encoding="utf-8").splitlines()

    def events(
        self, targets: Sequence[Target], status: int, name: str, *, is_complete: bool = True
    ) -> list[dict[str, object]]:
        """The build events of an invocation."""
        events: list[dict[str, object]] = [{"id": {"started": {}}, "started": {}}]
        for number, target in enumerate(targets):
            outputs = []
            if target.has_xml:
                file = self.folder / f"{number}" / "test.xml"
                file.parent.mkdir(exist_ok=True)
                write_xml(file, target.label, target.cases)
                outputs.append({"name": "test.xml", "uri": file.as_uri()})
            result = {"testActionOutput": outputs, "status": target.status, "testAttemptDuration": "1.5s"}
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


Run = Callable[..., int]


@pytest.fixture
def run(bazel: Bazel, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a lane whose invocations end as given: exit status and events of each."""
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(bazel.folder))

    def run(*turns: tuple[int, list[dict[str, object]] | None], arguments: Sequence[str] = ()) -> int:
        contents = [{"status": status, "events": events} for status, events in turns]
        (bazel.folder / "turns.json").write_text(json.dumps(contents), encoding="utf-8")
        return main([f"--bazel={bazel.program}", *arguments])

    return run


def _last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_a_green_lane_is_green(bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, nobody merges anything."""
    assert run((0, bazel.events([Target("//a:a")], 0, "SUCCESS"))) == 0
    assert _last_line(capsys) == "ci: green: every test that was to run has passed"
    (call,) = bazel.calls()
    assert call.startswith("test --config=ci --build_event_json_file=")
    assert call.endswith(" //...")


def test_flags_and_targets_reach_bazel_as_they_are(bazel: Bazel, run: Run) -> None:
    """If it fails, a lane runs something else than it says."""
    arguments = ["--config=rbe_local", "--test_filter=a b", "//a:a", "--attempts=1"]
    assert run((0, bazel.events([Target("//a:a")], 0, "SUCCESS")), arguments=arguments) == 0
    assert bazel.calls()[0].endswith(" --config=rbe_local --test_filter=a b //a:a")


@pytest.mark.parametrize(
    ("given", "expected"),
    [(["//a"], True), (["--config=x"], False), ([], False), (["--", "-//a"], True), ([""], False)],
)
def test_targets_are_told_from_flags(given: list[str], expected: bool) -> None:
    """If it fails, one target of a package becomes the whole repository, or the other way round."""
    assert has_targets(given) is expected


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
def test_what_bazel_ends_with_is_what_the_lane_ends_with(
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
        ([Target("//a:a", has_xml=False)], "the results of 1 target(s) are not on this machine"),
        ([Target("//a:a", status="NO_STATUS")], "1 target(s) did not pass, though Bazel's exit status is 0"),
    ],
)
def test_what_says_nothing_is_not_green(
    bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str], targets: Sequence[Target], reason: str
) -> None:
    """If it fails, a lane in which nothing ran looks like one in which everything passed."""
    assert run((0, bazel.events(targets, 0, "SUCCESS"))) == 1
    assert _last_line(capsys) == f"ci: exit status 1: {reason}"


@pytest.mark.parametrize("status", [0, 37])
def test_events_that_break_off_are_not_green(
    bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    """If it fails, a Bazel that was killed half way has passed."""
    assert run((status, bazel.events([Target("//a:a")], 0, "SUCCESS", is_complete=False))) == (status or 1)
    assert _last_line(capsys).startswith(f"ci: exit status {status or 1}: ")


def test_without_events_there_is_an_error_and_no_summary(
    bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it fails, a Bazel that did not start has passed."""
    assert run((0, None)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no results" in captured.err


def test_infrastructure_is_tried_again(bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, an executor that restarts makes every lane red."""
    lost = (39, bazel.events([], 39, "REMOTE_CACHE_EVICTED"))
    good = (0, bazel.events([Target("//a:a")], 0, "SUCCESS"))
    assert run(lost, good) == 0
    assert len(bazel.calls()) == 2
    assert "remote outputs were lost; attempt 2 of 3" in capsys.readouterr().err


def test_infrastructure_that_stays_away_is_an_error(bazel: Bazel, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, a lane without an executor runs for ever, or is green."""
    lost = (34, bazel.events([Target("//a:a"), Target("//a:b", [], "NO_STATUS", has_xml=False)], 34, "REMOTE_ERROR"))
    assert run(lost, lost, arguments=["--attempts=2"]) == 34
    assert len(bazel.calls()) == 2
    assert _last_line(capsys).startswith("ci: exit status 34: the remote executor failed")


def test_an_executor_that_never_answered_is_not_asked_again(bazel: Bazel, run: Run) -> None:
    """If it fails, a wrong address costs minutes."""
    assert run((34, bazel.events([Target("//a:a", [], "NO_STATUS", has_xml=False)], 34, "REMOTE_ERROR"))) == 34
    assert len(bazel.calls()) == 1


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


def _attempt(label: str, shard: int, duration_s: float, cached: str = "", strategy: str = "") -> Attempt:
    return Attempt(label, shard, 1, 1, "PASSED", cached, strategy, duration_s, None)


def _page(invocation: Invocation) -> str:
    return "\n".join(summary_lines(summarise(invocation), shard_rows=1))


def test_shards_are_listed_the_most_uneven_first() -> None:
    """If it fails, nobody sees which shard the lane waits for."""
    even = [_attempt("//a:even", shard, 2.0) for shard in (1, 2)]
    uneven = [_attempt("//a:uneven", 1, 1.0), _attempt("//a:uneven", 2, 3.0), _attempt("//a:single", 1, 9.0)]
    page = _page(Invocation([*even, *uneven], {}, [], {}, 0, "SUCCESS", True))
    assert "    1.50  //a:uneven: 1.0 3.0\n    and 1 targets that are more even" in page


def test_it_is_told_where_results_come_from() -> None:
    """If it fails, nobody sees that a cache has stopped to work."""
    attempts = [
        _attempt("//a:a", 1, 1.0, cached="remote"),
        _attempt("//a:b", 1, 1.0, cached="remote"),
        _attempt("//a:c", 1, 1.0, cached="local"),
        _attempt("//a:d", 1, 1.0, strategy="remote"),
    ]
    page = _page(Invocation(attempts, {}, [], {}, 0, "SUCCESS", True))
    assert "test actions: 1 ran (remote), 2 remote cache, 1 unchanged here" in page


def test_skips_and_failures_have_their_reasons(tmp_path: Path) -> None:
    """If it fails, people have to read logs to learn what the page is for."""
    file = tmp_path / "test.xml"
    write_xml(file, "//a:a", [PASSED, FAILED, SKIPPED, SKIPPED])
    attempt = Attempt("//a:a", 1, 1, 1, "FAILED", "", "remote", 1.0, file)
    broken = {"//a:c": "missing input file\nmore"}
    page = _page(Invocation([attempt], {"//a:a": "FAILED"}, ["//a:b"], broken, 3, "TESTS_FAILED", True))
    for part in (
        "FAILED  //a:a\n    c.bad: rank 1 raised ValueError",
        "NOT BUILT  //a:c\n    missing input file",
        "SKIPPED BY BAZEL  //a:b",
        "    2 x Need at least 2 CUDA devices",
        "cases: 1 failed, 1 passed, 2 skipped",
        "targets: 0 passed, 2 did not pass, 1 skipped by Bazel, 0 ran nothing",
    ):
        assert part in page


def test_nothing_is_left_in_tmp(bazel: Bazel, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it fails, every lane leaves its events on the machine."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.fspath(scratch))
    assert run((0, bazel.events([Target("//a:a")], 0, "SUCCESS"))) == 0
    assert list(scratch.iterdir()) == []
