"""Commands without a cluster, after a killed cluster, and with a wrong state file."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from local_cluster import cli, cluster, health, parts
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
    """A scratch directory like the one that `up` makes."""
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Scratch(Path(folder))


def write_state(files: ClusterFiles, **state: object) -> None:
    """Write the state file of a cluster that does not run."""
    files.root.mkdir(parents=True, exist_ok=True)
    files.state.write_text(json.dumps({"supervisor": 1, "endpoint": "grpc://127.0.0.1:1", **state}))


# Holds the locks of its arguments as a supervisor does, and reports when it has them.
_HOLD = """
import fcntl, sys, time
locks = [open(name, "w") for name in sys.argv[1:]]
for lock in locks:
    fcntl.flock(lock, fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def running(*locks: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, which an action may have, too. It runs during the block and not after it."""
    command = [sys.executable, "-c", _HOLD, *locks]
    with subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b"ready\n" == process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("obstacle", ["pool", "name", "port", "database server", "another cluster"])
def test_commands_that_cannot_work_are_explained_and_leave_nothing(
    obstacle: str, files: ClusterFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise users see a traceback, or a server that ends during its start and removes the log with the reason."""
    with socket.socket() as taken, ExitStack() as stack:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        arguments, said = {
            "pool": (["up", "--pool", "x"], "NAME is letters"),
            "name": (["status", "--name", "../x"], "cannot be the name of a cluster"),
            "port": (["up", "--port", str(port)], f"port {port} cannot be used: Address already in use"),
            "database server": (["up", "--port=0"], "a private copy of postgresql cannot be made: apt-get, dpkg-deb, "),
            # Two clusters in one directory would remove each other's files.
            "another cluster": (["up"], "the cluster 'local' exists already"),
        }[obstacle]
        if obstacle == "another cluster":
            lock = cluster._lock(files)
            assert lock is not None
            stack.callback(os.close, lock)
        if obstacle == "database server":
            monkeypatch.setenv("PATH", "/nonexistent")
            monkeypatch.setattr("local_cluster.packages._POSTGRES_PLACES", ())
            monkeypatch.setattr("local_cluster.packages.find_buildbox", lambda: Path("/nonexistent"))
        assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 3
    assert not files.root.exists()


def test_port_is_held_and_can_still_be_listened_on() -> None:
    """Otherwise another program gets the server's port while the server restarts."""
    with reserve_port(0) as reservation, socket.socket() as stranger, socket.socket() as server:
        address = reservation.getsockname()
        with pytest.raises(OSError, match="Address already in use"):
            stranger.bind(address)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(address)
        server.listen()
        socket.create_connection(address, timeout=10).close()


def test_leftovers_of_a_killed_cluster_are_removed(files: ClusterFiles, scratch: Scratch) -> None:
    """Otherwise an action of a dead cluster still holds the GPUs."""
    write_state(files, scratch=str(scratch.root))
    said: list[str] = []
    with running(env={**os.environ, parts.MARK: str(scratch.root)}) as left:
        cluster.end_cluster(files, "local", said.append)
        assert -signal.SIGKILL == left.wait(10)
    assert ["removing the leftovers of a killed cluster"] == said
    assert not files.root.exists()
    assert not scratch.root.exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "an entry is missing"),
        ('{"supervisor": "1", "scratch": "/tmp/x", "endpoint": ""}', "an entry is missing"),
        ('{"supervisor": 1, "scratch": "/home", "endpoint": ""}', "which is not a directory of a cluster"),
        (
            '{"supervisor": 1, "scratch": "/tmp/dist-rbe-a/../x", "endpoint": ""}',
            "which is not a directory of a cluster",
        ),
    ],
)
def test_state_that_leads_elsewhere_is_refused(text: str, reason: str, files: ClusterFiles) -> None:
    """`down` removes the directory that the state file names, so it must belong to the cluster."""
    files.root.mkdir(parents=True)
    files.state.write_text(text)
    with pytest.raises(ClusterError, match=reason) as caught:
        cluster.end_cluster(files, "local", lambda _text: None)
    # The error names what the user must remove by hand.
    assert f"'{files.root}'" in caught.value.way_out


def test_scratch_of_another_kind_is_refused(files: ClusterFiles, scratch: Scratch, tmp_path: Path) -> None:
    """Another user may have put a link in the place of the scratch directory."""
    precious = tmp_path / "precious"
    precious.mkdir()
    link = scratch.root.with_name(f"{scratch.root.name}-link")
    link.symlink_to(precious)
    try:
        write_state(files, scratch=str(link))
        with pytest.raises(ClusterError, match="does not belong to this user"):
            cluster.end_cluster(files, "local", lambda _text: None)
        assert precious.exists()
    finally:
        link.unlink()


def test_supervisor_is_known_by_its_lock_and_ended(files: ClusterFiles, scratch: Scratch) -> None:
    """A start time, as an older version wrote it, changes when the clock is set."""
    files.root.mkdir(parents=True)
    with running(str(files.lock)) as supervisor:
        write_state(files, supervisor=supervisor.pid, started=0.5, scratch=str(scratch.root))
        assert scratch == cluster.find_cluster(files, "local")
        cluster.end_cluster(files, "local", lambda _text: None)
        assert -signal.SIGTERM == supervisor.wait(10)
    assert not files.root.exists()


def test_process_that_has_the_supervisors_number_now_is_not_touched(files: ClusterFiles, scratch: Scratch) -> None:
    """The kernel reuses numbers, most of all after a restart of the machine."""
    with running() as stranger:
        write_state(files, supervisor=stranger.pid, scratch=str(scratch.root))
        with pytest.raises(ClusterError, match="Files of a killed one are left"):
            cluster.find_cluster(files, "local")
        cluster.end_cluster(files, "local", lambda _text: None)
        assert stranger.poll() is None
    assert not files.root.exists()


# A supervisor without any parts, which is told to end three times before it listens.
_SUPERVISE = """
import os, signal, sys
from pathlib import Path
from local_cluster.places import ClusterFiles, Scratch
from local_cluster.plan import Plan
from local_cluster.supervisor import Supervisor
root, scratch = Path(sys.argv[1]), Path(sys.argv[2])
plan = Plan("local", 1, (), Path("/nonexistent"), Path("/nonexistent"))
supervisor = Supervisor(plan, ClusterFiles(root), Scratch(scratch), print)
os.kill(os.getpid(), signal.SIGTERM)
supervisor.serve()
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGHUP)
supervisor.go_down()
"""


def test_signals_between_the_end_and_the_clean_up_do_not_prevent_it(files: ClusterFiles, scratch: Scratch) -> None:
    """An impatient user would leave processes and gigabytes behind."""
    files.logs.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", _SUPERVISE, str(files.root), str(scratch.root)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert not files.root.exists()
    assert not scratch.root.exists()


def test_error_of_a_part_that_does_not_start_has_its_log(tmp_path: Path) -> None:
    """The log is removed with the cluster, so the whole end of it must be in the error."""
    log = tmp_path / "part.log"
    shell = "for line in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo line $line; done; exit 3"
    running = parts.start_part(parts.Part("part", ("/bin/sh", "-c", shell), {}), log)
    with pytest.raises(ClusterError, match="part ended with status 3 before it was ready") as caught:
        health.wait_ready(running, lambda: False, log)
    os.close(running.pidfd)
    assert "line 1\n" in caught.value.what
    assert "line 20" in caught.value.what
