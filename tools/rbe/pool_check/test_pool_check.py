"""The facts about a pool, from the test that examines a worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import probe
import pytest
from probe import Finding

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


def test_a_worker_that_should_not_run_a_test_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPU tests would go to any worker, and the check would be green."""
    monkeypatch.setenv("DIST_TESTING_RBE_WORKER", "cpu-1")
    assert 1 == probe.main(["no_worker"])
    assert " cpu-1.\n" in capsys.readouterr().out
