"""What is said about a pool, from what its tests see and from what comes back of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import probe
import pytest
import table as client
from finding import Finding, table

RELIED_ON = {"test protocol", "undeclared outputs", "writable tmp", "loopback network", "processes", "/proc", "gpus"}


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Bazel's variables, as a test has them; returns the folder of undeclared outputs."""
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    monkeypatch.setenv("TEST_TMPDIR", str(tmp_path))
    monkeypatch.setenv("TEST_SRCDIR", str(tmp_path))
    monkeypatch.setenv("TEST_TIMEOUT", "60")
    monkeypatch.setenv("XML_OUTPUT_FILE", str(tmp_path / "test.xml"))
    monkeypatch.setenv("TEST_UNDECLARED_OUTPUTS_DIR", str(outputs))
    monkeypatch.delenv("DIST_TESTING_GPU_NODES", raising=False)
    return outputs


def seen(folder: Path, name: str, status: str = "PASSED", **texts: str) -> client.Seen:
    """A run whose files came back; `_` in a keyword stands for a dot."""
    files = {}
    for key, text in texts.items():
        file = Path(tempfile.mkdtemp(dir=folder)) / key.replace("_", ".")
        file.write_text(text, encoding="utf-8")
        files[file.name] = file
    return client.Seen(name, status, files)


def by_name(findings: Sequence[Finding]) -> dict[str, Finding]:
    """The findings, each of which is there once."""
    names = [one.name for one in findings]
    assert len(names) == len(set(names))
    return {one.name: one for one in findings}


def test_machine_that_runs_our_tests_has_what_they_rely_on(protocol: Path) -> None:
    """A kit that refuses a machine on which the library works sends people to mend what is not broken."""
    found = by_name(list(probe.look_around(0)))
    assert {name: found[name].text for name in RELIED_ON if found[name].verdict != "ok"} == {}
    assert not [one for one in found.values() if one.verdict == "FAILED" and one.name not in RELIED_ON]


def test_pool_without_the_declared_gpus_fails(
    protocol: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pool that does not keep its promise would turn every GPU test red, or green and idle."""
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    (nodes / "nvidia0").touch()
    (nodes / "nvidiactl").touch()
    monkeypatch.setenv("DIST_TESTING_GPU_NODES", str(nodes))
    assert 0 == probe.main(["inside", "--gpus=1"])
    capsys.readouterr()
    assert 1 == probe.main(["inside", "--gpus=2"])
    output = capsys.readouterr().out
    assert "| gpus | FAILED | 1 simulated GPU(s), and 2 are declared" in output
    (failure,) = ElementTree.parse(tmp_path / "test.xml").getroot().iter("failure")
    assert "the pool does not keep its promise" in failure.attrib["message"]
    assert {"pool.json", "pool.md", "written.txt"} == {path.name for path in protocol.iterdir()}


def test_missing_protocol_is_a_failure(protocol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a deadline a hang is found by nobody."""
    monkeypatch.delenv("TEST_TIMEOUT")
    assert (
        Finding("test protocol", "FAILED", "not set: TEST_TIMEOUT")
        == by_name(list(probe.look_around(0)))["test protocol"]
    )


def test_folder_that_cannot_be_written_is_a_failure(protocol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of ranks would be lost, and nobody would know."""
    monkeypatch.setenv("TEST_UNDECLARED_OUTPUTS_DIR", "/proc/nowhere")
    found = by_name(list(probe.look_around(0)))["undeclared outputs"]
    assert "FAILED" == found.verdict
    assert "'/proc/nowhere' cannot be written" in found.text


@pytest.mark.parametrize("is_zipped", [True, False])
def test_what_came_back_is_compared_with_what_was_written(is_zipped: bool, tmp_path: Path) -> None:
    """An executor that loses outputs looks like a green one."""
    text = json.dumps([asdict(Finding("cpus", "ok", "2"))])
    inside = seen(tmp_path, "pool", test_log="a log", test_xml="<testcase name='loopback network'/>")
    if is_zipped:
        with zipfile.ZipFile(tmp_path / "outputs.zip", "w") as archive:
            archive.writestr("pool.json", text)
        inside.files["test.outputs__outputs.zip"] = tmp_path / "outputs.zip"
    else:
        (tmp_path / "pool.json").write_text(text)
        inside.files["test.outputs/pool.json"] = tmp_path / "pool.json"
    found = by_name(list(client.findings("pool", [inside])))
    assert "2" == found["cpus"].text
    for name in ("undeclared outputs back", "test.xml back", "test.log back"):
        assert "ok" == found[name].verdict


def test_what_did_not_come_back_is_a_failure(tmp_path: Path) -> None:
    """The same, without them."""
    inside = seen(tmp_path, "pool", test_xml="<testcase name='pool_check'/>")
    found = by_name(list(client.findings("pool", [inside])))
    for name in ("undeclared outputs back", "test.xml back", "test.log back"):
        assert "FAILED" == found[name].verdict


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("outputs.zip", b"PK half an archive", "BadZipFile"),
        ("pool.json", b"[{", "JSONDecodeError"),
        ("pool.json", b'[{"of": "another"}]', "TypeError"),
        ("pool.json", b"1", "TypeError"),
    ],
)
def test_what_came_back_in_pieces_is_a_failure(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    """And a row of the table, not a traceback in its place."""
    inside = seen(tmp_path, "pool", test_log="a log")
    (tmp_path / name).write_bytes(content)
    inside.files[f"test.outputs/{name}"] = tmp_path / name
    found = by_name(list(client.findings("pool", [inside])))["undeclared outputs back"]
    assert "FAILED" == found.verdict
    assert said in found.text


@pytest.mark.parametrize(
    ("status", "log", "verdict", "text"),
    [
        ("TIMEOUT", "grace: waiting\ngrace: SIGTERM\ngrace: still running after 1 s\n", "ok", "at least 1 s"),
        ("TIMEOUT", "grace: waiting\n", "note", "no SIGTERM was seen"),
        ("FAILED", "grace: nobody ended this test\n", "FAILED", "is FAILED, and TIMEOUT is expected"),
        ("NO_STATUS", "", "FAILED", "is NO_STATUS"),
    ],
)
def test_end_of_time_is_told_by_the_log(status: str, log: str, verdict: str, text: str, tmp_path: Path) -> None:
    """Without a grace, what a test writes at its end is lost."""
    found = by_name(list(client.findings("pool", [seen(tmp_path, "pool.grace", status, test_log=log)])))
    assert verdict == found["timeout"].verdict
    assert text in found["timeout"].text


def test_shards_that_overlap_ran_at_once(tmp_path: Path) -> None:
    """An executor that runs one action after the other makes shards useless."""
    spans = [(0.0, 6.0, "a"), (1.0, 7.0, "b"), (6.5, 12.0, "a")]
    runs = [
        seen(tmp_path, "pool.spread", test_log=json.dumps({"start": start, "end": end, "worker": worker}))
        for start, end, worker in spans
    ]
    found = by_name(list(client.findings("pool", runs)))["concurrency"]
    assert "2 of 3 shards ran at once, on a, b" == found.text


@pytest.mark.parametrize(
    ("looked", "verdict"),
    [({"worker": "a", "found": 1}, "note"), ({"worker": "a", "found": 0}, "ok"), ({"worker": "b", "found": 0}, "note")],
)
def test_what_was_left_behind_is_looked_for_where_it_was_left(
    looked: dict[str, object], verdict: str, tmp_path: Path
) -> None:
    """Another worker never had it, and says nothing about the one that has."""
    runs = [
        seen(tmp_path, "pool.leave", test_log=json.dumps({"worker": "a"})),
        seen(tmp_path, "pool.look", test_log=json.dumps(looked)),
    ]
    assert verdict == by_name(list(client.findings("pool", runs)))["process clean-up"].verdict


@pytest.mark.parametrize(
    ("status", "strategy", "verdict", "text"),
    [
        ("CONFIGURED", "", "ok", "did not run, while others did"),
        ("NO_STATUS", "", "ok", "did not run, while others did"),
        ("PASSED", "remote", "FAILED", "ran on host cpu-1: the value is ignored"),
        ("PASSED", "linux-sandbox", "note", "the test ran on this machine"),
    ],
)
def test_property_that_the_executor_ignores_is_a_failure(
    status: str, strategy: str, verdict: str, text: str, tmp_path: Path
) -> None:
    """GPU tests would go to any worker, and the table would be green."""
    run = seen(tmp_path, "pool.nobody.Pool", status, test_log=json.dumps({"worker": "host cpu-1"}))
    runs = [client.Seen("pool.nobody.Pool", "CONFIGURED"), client.Seen(run.name, status, run.files, strategy)]
    found = by_name(list(client.findings("pool", runs)))["property Pool"]
    assert verdict == found.verdict
    assert text in found.text


@pytest.mark.parametrize("line", ["{not JSON", '{"somebody": "else\'s"}', "[]"])
def test_lines_of_others_in_a_log_are_not_ours(line: str, tmp_path: Path) -> None:
    """A wrapper of the executor's that logs in braces must not end the table in a traceback."""
    told = json.dumps({"start": 0.0, "end": 1.0, "worker": "a"})
    runs = [seen(tmp_path, "pool.spread", test_log=f"{line}\n{told}\n")]
    found = by_name(list(client.findings("pool", runs)))["concurrency"]
    assert "1 of 1 shards ran at once, on a" == found.text


# Stands for Bazel: the tests pass, but for one in whose pool nobody is.
_BAZEL = """\
import json, sys, time
from pathlib import Path
(events,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--build_event_json_file=")]
labels = [word for word in sys.argv if word.startswith("//")]
lines = [{"id": {"targetConfigured": {"label": "//p:pool.nobody.Pool"}}}, {"id": {}, "said": "a line\u2028of Unicode"}]
for label in labels:
    if not label.endswith(".nobody"):
        lines.append({"id": {"testResult": {"label": label}}, "testResult": {"status": "PASSED"}})
        lines.append({"id": {"testSummary": {"label": label}}})
Path(events).write_text("".join(json.dumps(line, ensure_ascii=False) + "\\n" for line in lines) + '{"id": {"half')
if WAITS_FOR in " ".join(labels):
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        sys.exit(8)
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, which `bazel run` was started in."""
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(tmp_path))
    return tmp_path


def install_bazel(workspace: Path, waits_for: str) -> None:
    """Put it into the workspace; it does not end if it is given a test whose name has `waits_for`."""
    program = workspace / "bazelw"
    program.write_text(f"#!{sys.executable}\nWAITS_FOR = {waits_for!r}\n{_BAZEL}")
    program.chmod(0o755)


def test_test_that_nobody_takes_is_called_back(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It waits for ever where the executor is right, and the table would with it."""
    monkeypatch.setattr(client, "_NOBODY_S", 0.0)
    install_bazel(workspace, ".nobody")
    # Nothing came back from the others.
    assert 1 == client.main(["--check=//p:pool"])
    assert "| property Pool | ok | a test with a value that no worker has did not run" in capfd.readouterr().out


def test_pool_without_a_worker_is_named(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No timeout of Bazel's counts the time in the queue."""
    install_bazel(workspace, ".grace")
    assert 2 == client.main(["--check=//p:pool", "--limit=2"])
    error = capfd.readouterr().err
    assert "the pool of //p:pool: its tests have not ended within 2 s." in error
    assert 3 == len(error.splitlines())


def test_bazel_that_cannot_be_interrupted_is_killed(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold up the table as long as the test that nobody takes."""
    monkeypatch.setattr(client, "_INTERRUPT_S", 0.0)
    program = workspace / "bazelw"
    program.write_text(f"#!{sys.executable}\nimport signal, time\nsignal.signal(2, signal.SIG_IGN)\ntime.sleep(60)\n")
    program.chmod(0o755)
    ended: list[int] = []
    wait = subprocess.Popen.wait

    def note(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        status = wait(process, timeout)
        ended.append(status)
        return status

    monkeypatch.setattr(subprocess.Popen, "wait", note)
    assert 2 == client.main(["--check=//p:pool", "--limit=2"])
    assert -signal.SIGKILL == ended[-1]


def test_second_half_that_did_not_run_is_told(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A test that nobody was offered would count as one that nobody takes."""
    program = workspace / "bazelw"
    lines = [
        f"#!{sys.executable}",
        "import pathlib, sys",
        "words = [word for word in sys.argv if word.startswith('--build_event_json_file=')]",
        'pathlib.Path(words[0].partition("=")[2]).write_text(\'{"id": {"started": {}}}\\n\')',
        "sys.exit(36 if '//p:pool.look' in sys.argv else 0)",
    ]
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    assert 2 == client.main(["--check=//p:pool"])
    assert "Bazel ended with status 36." in capfd.readouterr().err


def test_limit_that_is_no_number_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A limit of nothing would call every pool empty."""
    with pytest.raises(SystemExit):
        client.main(["--limit=0"])
    assert "'0' is no number of seconds" in capsys.readouterr().err


def test_events_name_runs_and_the_files_that_are_here(tmp_path: Path) -> None:
    """A file that stayed on the executor did not come back."""
    log = tmp_path / "a test.log"
    log.write_text("x")
    outputs = [
        {"name": "test.log", "uri": log.as_uri()},
        {"name": "test.xml", "uri": "bytestream://cache/blobs/1/2"},
        {"name": "gone", "uri": (tmp_path / "gone").as_uri()},
    ]
    event = {
        "id": {"testResult": {"label": "@@x//p:pool.look"}},
        "testResult": {"status": "PASSED", "testActionOutput": outputs},
    }
    events: list[dict[str, object]] = [event, {"id": {"started": {}}}]
    assert [client.Seen("pool.look", "PASSED", {"test.log": log})] == client.seen_in(events)


def test_table_has_one_row_for_each_finding() -> None:
    """A bar in a text would break it."""
    assert "| a | ok | x/y |" in table([Finding("a", "ok", "x|y")]).splitlines()
