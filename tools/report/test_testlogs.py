"""Where results are found, and to which target they belong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from build_events import EventsError, read_invocation
from testlogs import Results, read_results

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import CaseRecord


def _write(path: Path, suite: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_xml(path, suite, [CaseRecord("c.n", "passed", duration_s=1.0)])
    return path


def _targets(results: Results) -> list[str]:
    return [run.target for run in results.runs]


@pytest.mark.parametrize(
    ("place", "suite", "target"),
    [
        ("pkg/sub/name", "//other:label", "//other:label"),
        ("pkg/sub/name", "@@repo//other:label", "@@repo//other:label"),
        # Written by Bazel for a test that wrote none; named after the program.
        ("pkg/sub/name", "pkg/sub/name", "//pkg/sub:name"),
        ("pkg/name/shard_1_of_2", "x", "//pkg:name"),
        ("pkg/name/run_2_of_3", "x", "//pkg:name"),
        ("pkg/name/shard_1_of_2_run_2_of_3", "x", "//pkg:name"),
        ("name", "x", "//:name"),
    ],
)
def test_results_belong_to_their_target(tmp_path: Path, place: str, suite: str, target: str) -> None:
    """Shards and repeated runs have folders of their own, and not every file names its target."""
    _write(tmp_path / "testlogs" / place / "test.xml", suite)
    assert _targets(read_results([tmp_path])) == [target]


def test_folders_and_files_can_be_named(tmp_path: Path) -> None:
    """bazel-testlogs is a link, and CI keeps single files."""
    _write(tmp_path / "testlogs" / "a" / "test.xml", "//a:a")
    single = _write(tmp_path / "kept.xml", "//b:b")
    link = tmp_path / "bazel-testlogs"
    link.symlink_to(tmp_path / "testlogs")
    assert _targets(read_results([link, single])) == ["//a:a", "//b:b"]


# The last line of a file of build events.
_LAST: dict[str, object] = {"id": {"progress": {}}, "lastMessage": True}


def _write_events(path: Path, *events: dict[str, object]) -> Path:
    path.write_text("".join(f"{json.dumps(event, ensure_ascii=False)}\n" for event in events), encoding="utf-8")
    return path


def _event(kind: str, label: str, **event: object) -> dict[str, object]:
    return {"id": {kind: {"label": label}}, **event}


def test_build_events_describe_one_invocation(tmp_path: Path) -> None:
    """The folder also has the results of earlier runs."""
    file = _write(tmp_path / "with space" / "test.xml", "//of:runner")
    output = {"name": "test.xml", "uri": file.as_uri()}
    remote = {"name": "test.xml", "uri": "bytestream://cache/blobs/1/2"}
    removed = {"name": "test.xml", "uri": (tmp_path / "removed" / "test.xml").as_uri()}
    events: list[dict[str, object]] = [
        {"id": {"started": {}}, "started": {}},
        _event("testResult", "//a:a", testResult={"testActionOutput": [{"name": "test.log"}, output]}),
        _event("testResult", "//far:away", testResult={"testActionOutput": [remote]}),
        _event("testResult", "//far:removed", testResult={"testActionOutput": [removed]}),
        _event("targetCompleted", "//a:gpu", aborted={"reason": "SKIPPED"}),
        _event("targetCompleted", "//a:broken", aborted={"reason": "ANALYSIS_FAILURE"}),
    ]
    results = read_results([_write_events(tmp_path / "events.json", *events, _LAST)])
    assert _targets(results) == ["//a:a"]
    assert (results.incompatible, results.unread) == (["//a:gpu"], ["//far:away", "//far:removed"])


@pytest.mark.parametrize(
    ("label", "place"),
    [
        ("//pkg/sub:name", "pkg/sub/name/test.xml"),
        ("//pkg/sub:name", "pkg/sub/name/shard_1_of_2/test.xml"),
        ("//pkg/sub:name", "pkg/sub/name/test_attempts/attempt_1.xml"),
        ("//:name", "name/test.xml"),
        ("@@other+//pkg:name", "external/other+/pkg/name/test.xml"),
    ],
)
def test_results_that_an_executor_keeps_are_read_where_bazel_has_fetched_them(
    tmp_path: Path, label: str, place: str
) -> None:
    """After a remote run all results would be unknown, or results of an earlier run would count as this run's."""
    file = _write(tmp_path / "bazel-out" / "k8" / "testlogs" / place, label)
    content = file.read_bytes()
    for digest, found in ((hashlib.sha256(content).hexdigest(), True), ("0" * 64, False)):
        uri = f"bytestream://host:1/instance/blobs/{digest}/{len(content)}"
        result = {"testActionOutput": [{"name": "test.xml", "uri": uri}]}
        identity = {"label": label, "configuration": {"id": "c"}}
        events = [
            {"id": {"workspace": {}}, "workspaceInfo": {"localExecRoot": str(tmp_path)}},
            {"id": {"configuration": {"id": "c"}}, "configuration": {"mnemonic": "k8"}},
            {"id": {"testResult": identity}, "testResult": result},
        ]
        results = read_results([_write_events(tmp_path / "events.json", *events, _LAST)])
        assert (_targets(results), results.unread) == (([label], []) if found else ([], [label]))


def test_only_a_line_feed_ends_an_event(tmp_path: Path) -> None:
    """JSON keeps characters that end a line in Python: an environment with one would hide all results."""
    odd = {"id": {"progress": {}}, "progress": {"stderr": "next line \N{NEXT LINE}, separator \N{LINE SEPARATOR}"}}
    invocation = read_invocation(_write_events(tmp_path / "events.json", odd, _LAST))
    assert invocation.is_complete


@pytest.mark.parametrize("end", ["", '{"id": {"prog', '{"id": {"progress": {}}, "last\N{BLACK STAR}'])
def test_events_that_are_incomplete_are_no_results(tmp_path: Path, end: str) -> None:
    """Half a run in which every case ran would look like a whole run in which every case ran."""
    path = _write_events(tmp_path / "events.json", _event("testResult", "//a:a", testResult={}))
    # Also within a character.
    path.write_bytes(path.read_bytes() + end.encode()[:-1])
    assert not read_invocation(path).is_complete
    with pytest.raises(ReportError, match="are incomplete after 1 results"):
        read_results([path])


def test_a_line_that_is_not_an_event_is_named(tmp_path: Path) -> None:
    """Only the last line can be incomplete; any other bad line means another kind of file."""
    path = _write_events(tmp_path / "events.json", _LAST)
    path.write_text(path.read_text(encoding="utf-8") + "{\n" + json.dumps(_LAST) + "\n", encoding="utf-8")
    with pytest.raises(EventsError, match="line 2: "):
        read_invocation(path)


@pytest.mark.parametrize("order", [("PASSED", "FAILED"), ("FAILED", "PASSED"), ("FAILED", "FLAKY")])
def test_the_worst_of_several_configurations_counts(tmp_path: Path, order: tuple[str, str]) -> None:
    """The success of one would overwrite the failure of the other."""
    path = tmp_path / "events.json"
    events = [_event("testSummary", "//a:a", testSummary={"overallStatus": status}) for status in order]
    assert dict(read_invocation(_write_events(path, *events, _LAST)).summaries) == {"//a:a": "FAILED"}


@pytest.mark.parametrize("content", ["no json", "[1]\n", '{"no": "id"}\n', b"\xff"])
def test_other_files_are_refused(tmp_path: Path, content: str | bytes) -> None:
    """A user may name the wrong file; an empty result would look like a good one."""
    path = tmp_path / "file.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ReportError, match="build events"):
        read_results([path])


@pytest.mark.parametrize("name", ["empty", "gone", "gone.xml", "built.json"])
def test_an_empty_result_is_refused(tmp_path: Path, name: str) -> None:
    """A check that reads an empty folder, or a build without tests, would always be green."""
    (tmp_path / "empty").mkdir()
    _write_events(tmp_path / "built.json", _event("targetCompleted", "//a:a", completed={"success": True}), _LAST)
    with pytest.raises(ReportError) as caught:
        read_results([tmp_path / name])
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    "event",
    [{"id": {"testResult": {}}, "testResult": {}}, {"id": {"targetCompleted": {"label": "//a"}}, "aborted": None}],
)
def test_events_of_another_form_are_refused(event: object, tmp_path: Path) -> None:
    """A file that another tool has changed must not end in a traceback."""
    file = tmp_path / "events.json"
    file.write_text(f"{json.dumps(event)}\n")
    with pytest.raises(EventsError, match="an event does not have Bazel's form"):
        read_invocation(file)
