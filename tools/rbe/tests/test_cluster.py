"""What commands do where no cluster is, where one was killed, and where the state is not what it should be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_cluster import cli, cluster, control, parts
from local_cluster.errors import ClusterError
from local_cluster.places import SCRATCH_PREFIX, ClusterFiles, Scratch, cluster_files
from local_cluster.plan import reserve_port


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFiles:
    """A user cache without a cluster."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cluster_files("local")


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    """A scratch directory, as `up` makes it."""
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Scratch(Path(folder))


def write_state(files: ClusterFiles, **state: object) -> None:
    """Leave the state of a cluster that is not there."""
    files.root.mkdir(parents=True)
    files.state.write_text(json.dumps({"supervisor": 1, "started": 0.5, "endpoint": "grpc://127.0.0.1:1", **state}))


@pytest.mark.parametrize("arguments", [["status"], ["down"], ["logs"], ["kill-worker", "cpu-1"], ["restart", "server"]])
def test_command_without_a_cluster_says_so(
    arguments: list[str], files: ClusterFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """A `down` that succeeds where nothing was could be aimed at the wrong cluster."""
    assert 1 == cli.main(arguments)
    assert "there is no cluster 'local'" in capsys.readouterr().err
    assert not files.root.exists()


@pytest.mark.parametrize("arguments", [["up", "--pool", "x"], ["status", "--name", "../x"]])
def test_bad_argument_is_explained_in_three_lines(
    arguments: list[str], files: ClusterFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback tells a user nothing."""
    assert 1 == cli.main(arguments)
    assert 3 == len(capsys.readouterr().err.splitlines())
    assert not files.root.exists()


def test_taken_port_is_explained_and_nothing_is_left(files: ClusterFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the server ends somewhere in its start, and the reason is in a log that is gone."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert 1 == cli.main(["up", "--port", str(port)])
    assert f"port {port} cannot be used: Address already in use" in capsys.readouterr().err
    assert not files.root.exists()


def test_port_is_held_and_can_still_be_listened_on() -> None:
    """Otherwise another program gets the server's port while the server is being restarted."""
    with reserve_port(0) as reservation, socket.socket() as stranger, socket.socket() as server:
        address = reservation.getsockname()
        with pytest.raises(OSError, match="Address already in use"):
            stranger.bind(address)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(address)
        server.listen()
        socket.create_connection(address, timeout=10).close()


def test_missing_database_server_is_explained(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine without PostgreSQL, and without the means to copy it, must be told what to install."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("local_cluster.packages._POSTGRES_PLACES", ())
    monkeypatch.setattr("local_cluster.packages.find_buildbox", lambda _cache: Path("/nonexistent"))
    assert 1 == cli.main(["up", "--port=0"])
    error = capsys.readouterr().err
    assert "initdb is not installed" in error
    assert "Install PostgreSQL" in error
    assert not files.root.exists()


def test_second_cluster_of_a_name_is_refused(files: ClusterFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """Two clusters in one directory would remove each other's files."""
    lock = cluster._lock(files)
    assert lock is not None
    try:
        assert 1 == cli.main(["up"])
        assert "the cluster 'local' is there already" in capsys.readouterr().err
        assert files.root.exists()
    finally:
        os.close(lock)


def test_leftovers_of_a_killed_cluster_are_removed(files: ClusterFiles, scratch: Scratch) -> None:
    """Otherwise an action of yesterday's cluster still holds the GPUs."""
    write_state(files, scratch=str(scratch.root))
    code = "import sys, time; sys.stdout.write('x'); sys.stdout.flush(); time.sleep(600)"
    # In a session of its own, as an action may be.
    left = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, parts.MARK: str(scratch.root)},
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    with left:
        assert left.stdout is not None
        assert b"x" == left.stdout.read(1)
        said: list[str] = []
        cluster.end_cluster(files, "local", said.append)
        assert -signal.SIGKILL == left.wait(10)
    assert ["removing what a killed cluster has left"] == said
    assert not files.root.exists()
    assert not scratch.root.exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "a part of it is missing"),
        ('{"supervisor": "1", "scratch": "/tmp/x", "endpoint": ""}', "a part of it is missing"),
        (
            '{"supervisor": 1, "started": 0.5, "scratch": "/home", "endpoint": ""}',
            "which is no directory of a cluster's",
        ),
        (
            '{"supervisor": 1, "started": 0.5, "scratch": "/tmp/dist-rbe-a/../x", "endpoint": ""}',
            "which is no directory of a cluster's",
        ),
    ],
)
def test_state_that_leads_elsewhere_is_refused(text: str, reason: str, files: ClusterFiles) -> None:
    """`down` removes the directory that the state names: it must be nobody else's."""
    files.root.mkdir(parents=True)
    files.state.write_text(text)
    with pytest.raises(ClusterError, match=reason):
        cluster.end_cluster(files, "local", lambda _text: None)


def test_scratch_of_another_kind_is_refused(files: ClusterFiles, scratch: Scratch, tmp_path: Path) -> None:
    """Somebody may have put a link where the scratch directory was."""
    precious = tmp_path / "precious"
    precious.mkdir()
    link = scratch.root.with_name(f"{scratch.root.name}-link")
    link.symlink_to(precious)
    try:
        write_state(files, scratch=str(link))
        with pytest.raises(ClusterError, match="is no directory of this user's"):
            cluster.end_cluster(files, "local", lambda _text: None)
        assert precious.exists()
    finally:
        link.unlink()


def test_supervisor_that_does_not_answer_is_explained(scratch: Scratch) -> None:
    """A dead socket must not look like a fault of the command."""
    with control.listen(scratch):
        pass
    with pytest.raises(ClusterError, match="supervisor does not answer"):
        control.ask(scratch, {"do": "status"})
