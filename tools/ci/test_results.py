"""Commands over results: which results they read, targets that ran nothing, and timings."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from build_events import EventsError, read_invocation
from results import ran_nothing, read_results, timings

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.bazel.timings import read_timings
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import CaseRecord

PASSED = CaseRecord("c.n", "passed", duration_s=1.0)
SKIPPED = CaseRecord("c.gpu", "skipped", message="no GPU")
# The last line of a file of build events.
_LAST: dict[str, object] = {"id": {"progress": {}}, "lastMessage": True}


def _write(path: Path, suite: str, *cases: CaseRecord) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_xml(path, suite, cases)
    return path


def _write_events(path: Path, *events: dict[str, object]) -> Path:
    path.write_text("".join(f"{json.dumps(event, ensure_ascii=False)}\n" for event in events), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("place", "suite", "target"),
    [
        # Written by Bazel for a test that wrote none; named after the program.
        ("pkg/sub/name", "pkg/sub/name", "//pkg/sub:name"),
        ("pkg/name/shard_1_of_2_run_2_of_3", "x", "//pkg:name"),
        ("name", "x", "//:name"),
        ("external/other+/pkg/name", "x", "@@other+//pkg:name"),
    ],
)
def test_results_belong_to_their_target(tmp_path: Path, place: str, suite: str, target: str) -> None:
    """Shards and repeated runs have folders of their own, and not every file names its target."""
    file = _write(tmp_path / "testlogs" / place / "test.xml", suite, PASSED)
    assert [run.target for run in read_results([tmp_path]).runs] == [target]
    # A store may keep equal files of two shards once.
    (tmp_path / "testlogs" / "other").mkdir()
    (tmp_path / "testlogs" / "other" / "test.xml").symlink_to(file)
    assert len(read_results([tmp_path]).runs) == 2


@pytest.mark.parametrize(
    ("label", "place"),
    [
        ("//pkg/sub:name", "pkg/sub/name/shard_1_of_2/test.xml"),
        ("//pkg/sub:name", "pkg/sub/name/test_attempts/attempt_1.xml"),
        ("@@other+//pkg:name", "external/other+/pkg/name/test.xml"),
    ],
)
def test_results_that_an_executor_keeps_are_read_where_bazel_has_fetched_them(
    tmp_path: Path, label: str, place: str
) -> None:
    """After a remote run all results would be unknown, or results of an earlier run would count as this run's."""
    file = _write(tmp_path / "bazel-out" / "k8" / "testlogs" / place, label, PASSED)
    content = file.read_bytes()
    wrong = "0" * 64
    # Python cannot compute BLAKE3, so there the time of the file tells.
    for digest, found in ((hashlib.sha256(content).hexdigest(), True), (wrong, False), (f"blake3/{wrong}", False)):
        uri = f"bytestream://host:1/instance/blobs/{digest}/{len(content)}"
        result = {"testActionOutput": [{"name": "test.xml", "uri": uri}]}
        identity = {"label": label, "configuration": {"id": "c"}}
        events: list[dict[str, object]] = [
            {"id": {"workspace": {}}, "workspaceInfo": {"localExecRoot": str(tmp_path)}},
            {"id": {"configuration": {"id": "c"}}, "configuration": {"mnemonic": "k8"}},
            {"id": {"testResult": identity}, "testResult": result},
            # Fetched again later.
            {"id": {"started": {}}, "started": {"startTime": "2023-11-14T22:13:20Z"}},
            {"id": {"buildFinished": {}}, "finished": {"finishTime": "2023-11-14T22:13:30Z"}},
        ]
        report = read_results([_write_events(tmp_path / "events.json", *events, _LAST)])
        assert [(run.target, run.has_results) for run in report.runs] == [(label, found)]


@pytest.mark.parametrize("end", ["", '{"id": {"prog', '{"id": {"progress": {}}, "last\N{BLACK STAR}'])
def test_events_that_are_incomplete_are_no_results(tmp_path: Path, end: str) -> None:
    """Half a run in which every case ran would look like a whole run in which every case ran."""
    path = _write_events(tmp_path / "events.json", {"id": {"testResult": {"label": "//a:a"}}, "testResult": {}})
    # Also within a character.
    path.write_bytes(path.read_bytes() + end.encode()[:-1])
    with pytest.raises(ReportError, match="are incomplete after 1 results"):
        read_results([path])


def test_a_line_that_is_not_an_event_is_named(tmp_path: Path) -> None:
    """Only the last line can be incomplete; any other bad line means another kind of file."""
    path = _write_events(tmp_path / "events.json", _LAST)
    path.write_text(path.read_text(encoding="utf-8") + "{\n" + json.dumps(_LAST) + "\n", encoding="utf-8")
    with pytest.raises(EventsError, match="line 2: "):
        read_invocation(path)


def test_a_target_ran_nothing_if_none_of_its_runs_ran_a_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One shard alone may skip all its cases. The list is for people, the status is for CI."""
    logs = tmp_path / "testlogs"
    _write(logs / "a" / "busy" / "test.xml", "//a:busy", PASSED, SKIPPED)
    _write(logs / "a" / "sharded" / "shard_1_of_2" / "test.xml", "//a:sharded", SKIPPED)
    _write(logs / "a" / "sharded" / "shard_2_of_2" / "test.xml", "//a:sharded", PASSED)
    _write(logs / "a" / "known" / "test.xml", "//a:known", CaseRecord("c.n", "xfailed", message="known"))
    assert ran_nothing([str(logs)]) == 0
    assert capsys.readouterr().out == "0 of 3 targets ran nothing\n"
    _write(logs / "a" / "idle" / "test.xml", "//a:idle", SKIPPED, CaseRecord("c.o", "skipped", message="no\nGPU"))
    _write(logs / "a" / "empty" / "test.xml", "//a:empty")
    assert ran_nothing([str(logs)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "2 of 5 targets ran nothing",
        "//a:empty: 0 case(s), none ran",
        "//a:idle: 2 case(s), none ran",
        "    1 x no GPU",
        "    1 x no GPU",
    ]


def test_missing_results_have_a_status_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CI must not take a wrong path for idle targets, nor results that it cannot see for targets that ran a case."""
    assert ran_nothing([str(tmp_path)]) == 2
    assert "the folder has no results in it" in capsys.readouterr().err
    for status, code in (("PASSED", 2), ("FAILED", 0)):
        result = {"id": {"testResult": {"label": "//a:a"}}, "testResult": {"status": status}}
        assert ran_nothing([str(_write_events(tmp_path / "events.json", result, _LAST))]) == code
        assert "//a:a: its results cannot be read" in capsys.readouterr().out


def _timings(folder: Path, *options: str) -> dict[str, dict[str, float]]:
    out = folder / "timings.json"
    assert timings([f"--out={out}", *options, str(folder / "testlogs")]) == 0
    found: dict[str, dict[str, float]] = json.loads(out.read_text(encoding="utf-8"))["targets"]
    assert read_timings(out) == found
    return found


def test_the_timing_of_a_case_is_the_median_of_the_runs_in_which_it_passed(tmp_path: Path) -> None:
    """One run on a busy machine can be far off; a failure may take no time at all, or run until the timeout."""
    for number, seconds in enumerate([1.0, 30.0, 2.00049]):
        place = tmp_path / "testlogs" / "a" / "a" / f"run_{number + 1}_of_4" / "test.xml"
        _write(place, "//a:a", CaseRecord("a.test_x[1]", "passed", duration_s=seconds))
    failed = CaseRecord("a.y", "failed", duration_s=300.0)
    _write(tmp_path / "testlogs" / "a" / "a" / "run_4_of_4" / "test.xml", "//a:a", failed)
    assert _timings(tmp_path) == {"//a:a": {"a.test_x[1]": 2.0}}


def test_old_timings_stay_unless_the_file_is_made_anew(tmp_path: Path) -> None:
    """A run of some targets must not remove the timings of the others."""
    old = {"schema": 1, "targets": {"//b:b": {"b.z": 3.0}, "//a:a": {"c.n": 9.0, "a.other": 4.0}}}
    (tmp_path / "timings.json").write_text(json.dumps(old), encoding="utf-8")
    _write(tmp_path / "testlogs" / "a" / "a" / "test.xml", "//a:a", PASSED)
    assert _timings(tmp_path) == {"//a:a": {"a.other": 4.0, "c.n": 1.0}, "//b:b": {"b.z": 3.0}}
    assert _timings(tmp_path, "--anew") == {"//a:a": {"c.n": 1.0}}


def test_relative_paths_are_those_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bazel run` starts programs in another folder."""
    _write(tmp_path / "bazel-testlogs" / "a" / "test.xml", "//a:a", PASSED)
    # The program changes the folder; afterwards it must be the old one again.
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(tmp_path))
    assert timings(["--out=timings.json"]) == 0
    assert (tmp_path / "timings.json").exists()


def test_results_that_cannot_be_read_are_named_and_the_others_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise one damaged file hides the others, or is missing without a word."""
    _write(tmp_path / "testlogs" / "a" / "a" / "test.xml", "//a:a", PASSED)
    _write(tmp_path / "testlogs" / "a" / "cut" / "test.xml", "//a:cut").write_text("<", encoding="utf-8")
    assert _timings(tmp_path) == {"//a:a": {"c.n": 1.0}}
    assert "//a:cut" in capsys.readouterr().err


def test_a_file_that_is_no_place_for_timings_is_named_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a file of another program would be extended, or a folder that does not exist causes a traceback."""
    _write(tmp_path / "testlogs" / "a" / "a" / "test.xml", "//a:a", PASSED)
    other, nowhere = tmp_path / "timings.json", tmp_path / "no" / "file.json"
    other.write_text("<", encoding="utf-8")
    for out, said in ((other, str(other)), (nowhere, "cannot be written")):
        assert timings([f"--out={out}", str(tmp_path / "testlogs")]) == 1
        assert said in capsys.readouterr().err
    assert other.read_text(encoding="utf-8") == "<"
