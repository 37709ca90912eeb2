"""The facts about a pool, from the reports of its tests and from the outputs that come back."""

from __future__ import annotations

import json
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
from finding import Finding

RELIED_ON = {"test protocol", "undeclared outputs", "writable tmp", "loopback network", "processes", "/proc", "gpus"}


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set Bazel's variables as for a test; return the folder of undeclared outputs."""
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
    """Return the findings by their names, which must be unique."""
    names = [one.name for one in findings]
    assert len(names) == len(set(names))
    return {one.name: one for one in findings}


def test_machine_that_runs_our_tests_has_all_that_they_need(protocol: Path) -> None:
    """Otherwise users would repair machines on which the library works."""
    found = by_name(list(probe.look_around(0)))
    assert {name: found[name].text for name in RELIED_ON if found[name].verdict != "ok"} == {}
    assert not [one for one in found.values() if one.verdict == "FAILED" and one.name not in RELIED_ON]


def test_pool_without_the_declared_gpus_fails(
    protocol: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pool that breaks its promise would turn every GPU test red, or green and idle."""
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
    assert "the pool breaks its promise" in failure.attrib["message"]
    assert {"pool.json", "pool.md", "written.txt"} == {path.name for path in protocol.iterdir()}


def test_missing_protocol_is_a_failure(protocol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a deadline a hang is never found."""
    monkeypatch.delenv("TEST_TIMEOUT")
    assert (
        Finding("test protocol", "FAILED", "not set: TEST_TIMEOUT")
        == by_name(list(probe.look_around(0)))["test protocol"]
    )


def test_folder_that_cannot_be_written_is_a_failure(protocol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the logs of ranks would be lost silently."""
    monkeypatch.setenv("TEST_UNDECLARED_OUTPUTS_DIR", "/proc/nowhere")
    found = by_name(list(probe.look_around(0)))["undeclared outputs"]
    assert "FAILED" == found.verdict
    assert "'/proc/nowhere' cannot be written" in found.text


@pytest.mark.parametrize("is_zipped", [True, False])
def test_outputs_are_compared_with_what_was_written(is_zipped: bool, tmp_path: Path) -> None:
    """An executor that loses outputs would look like a good one."""
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


def test_missing_output_is_a_failure(tmp_path: Path) -> None:
    """An executor that returns none of them would look like a good one."""
    inside = seen(tmp_path, "pool", test_xml="<testcase name='pool_check'/>")
    found = by_name(list(client.findings("pool", [inside])))
    for name in ("undeclared outputs back", "test.xml back", "test.log back"):
        assert "FAILED" == found[name].verdict


@pytest.mark.parametrize(
    ("status", "log", "verdict", "text"),
    [
        ("TIMEOUT", "grace: waiting\ngrace: SIGTERM\ngrace: still running after 1 s\n", "ok", "at least 1 s"),
        ("TIMEOUT", "grace: waiting\n", "note", "the test got no SIGTERM"),
        ("FAILED", "grace: this test was not ended\n", "FAILED", "is FAILED, but TIMEOUT is expected"),
        ("NO_STATUS", "", "FAILED", "is NO_STATUS"),
    ],
)
def test_timeout_is_read_from_the_log(status: str, log: str, verdict: str, text: str, tmp_path: Path) -> None:
    """Without time after SIGTERM, output that a test writes at its end is lost."""
    found = by_name(list(client.findings("pool", [seen(tmp_path, "pool.grace", status, test_log=log)])))
    assert verdict == found["timeout"].verdict
    assert text in found["timeout"].text


def test_shards_that_overlap_ran_at_once(tmp_path: Path) -> None:
    """With an executor that runs one action after the other, shards would be useless."""
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
def test_leftover_process_is_searched_on_the_worker_that_had_it(
    looked: dict[str, object], verdict: str, tmp_path: Path
) -> None:
    """Another worker never had the process, so its answer means nothing."""
    runs = [
        seen(tmp_path, "pool.leave", test_log=json.dumps({"worker": "a"})),
        seen(tmp_path, "pool.look", test_log=json.dumps(looked)),
    ]
    assert verdict == by_name(list(client.findings("pool", runs)))["process clean-up"].verdict


@pytest.mark.parametrize(
    ("status", "strategy", "verdict", "text"),
    [
        ("CONFIGURED", "", "ok", "did not run, and others did"),
        ("NO_STATUS", "", "ok", "did not run, and others did"),
        ("PASSED", "remote", "FAILED", "ran on host cpu-1: the executor ignores the value"),
        ("PASSED", "linux-sandbox", "note", "the test ran on this machine"),
    ],
)
def test_property_that_the_executor_ignores_is_a_failure(
    status: str, strategy: str, verdict: str, text: str, tmp_path: Path
) -> None:
    """GPU tests would go to any worker, and the table would be green."""
    run = seen(tmp_path, "pool.no_worker.Pool", status, test_log=json.dumps({"worker": "host cpu-1"}))
    runs = [client.Seen("pool.no_worker.Pool", "CONFIGURED"), client.Seen(run.name, status, run.files, strategy)]
    found = by_name(list(client.findings("pool", runs)))["property Pool"]
    assert verdict == found.verdict
    assert text in found.text


# A stand-in for Bazel: the tests pass, except the one that no worker takes.
_BAZEL = """\
import json, sys, time
from pathlib import Path
(events,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--build_event_json_file=")]
labels = [word for word in sys.argv if word.startswith("//")]
waits = "//p:pool.no_worker.Pool"
lines = [{"id": {"targetConfigured": {"label": waits}}}, {"id": {}, "said": "a line\u2028of Unicode"}]
for label in labels:
    if not label.endswith(".no_worker"):
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
    """A workspace in which `bazel run` was started."""
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(tmp_path))
    return tmp_path


def install_bazel(workspace: Path, waits_for: str) -> None:
    """Install the stand-in. It hangs if it gets a test whose name contains `waits_for`."""
    program = workspace / "bazelw"
    program.write_text(f"#!{sys.executable}\nWAITS_FOR = {waits_for!r}\n{_BAZEL}")
    program.chmod(0o755)


def test_test_that_no_worker_takes_is_cancelled(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a correct executor it waits for ever, and the table would wait with it."""
    monkeypatch.setattr(client, "_NO_WORKER_S", 0.0)
    install_bazel(workspace, ".no_worker")
    # The other tests have no outputs.
    assert 1 == client.main(["--check=//p:pool"])
    assert "| property Pool | ok | a test whose value no worker has did not run" in capfd.readouterr().out


def test_pool_without_a_worker_is_named(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """None of Bazel's timeouts counts the time in the queue."""
    install_bazel(workspace, ".grace")
    assert 2 == client.main(["--check=//p:pool", "--limit=2"])
    error = capfd.readouterr().err
    assert "the pool of //p:pool: its tests have not ended within 2 s." in error
    assert 3 == len(error.splitlines())
