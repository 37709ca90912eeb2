"""After a cluster has ended, nothing of it is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_cluster import cluster, parts, places
from local_cluster.places import SCRATCH_PREFIX, ClusterFiles, cluster_files

# Removes the files of the cluster "local", and prints the error if that fails.
_REMOVE = """
import sys
from local_cluster import places
from local_cluster.errors import ClusterError
try:
    places.remove_files(places.cluster_files("local"), None)
except ClusterError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFiles:
    """A user cache with the directory of a cluster."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = cluster_files("local")
    files.root.mkdir(parents=True)
    return files


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in /tmp, as a test makes it."""
    with tempfile.TemporaryDirectory(prefix="dist-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program that imports what this test imports."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_folder_without_write_permission_is_removed(files: ClusterFiles) -> None:
    """Outputs of actions are write-protected; an ordinary user could never remove them."""
    deep = files.root / "storage" / "deep"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    deep.chmod(0o555)
    deep.parent.chmod(0o500)
    python = [sys.executable, "-c", _REMOVE]
    # Root may write everywhere, unless it drops that right.
    ordinary = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *python] if os.geteuid() == 0 else python
    done = run(*ordinary)
    assert (0, "") == (done.returncode, done.stderr)
    assert not files.root.exists()


def test_file_that_cannot_be_removed_is_named(files: ClusterFiles) -> None:
    """The message that nothing is left must be true, and `down` must find the rest again."""
    mounted = files.root / "storage"
    mounted.mkdir()
    state = {"supervisor": 1, "endpoint": "", "scratch": f"/tmp/{SCRATCH_PREFIX}x"}
    files.state.write_text(json.dumps(state))
    script = f'mount -t tmpfs none "{mounted}" && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None or run(*command, "true").returncode:
        pytest.skip("this kernel does not allow a mount in a user namespace")
    done = run(*command, sys.executable, "-c", _REMOVE)
    assert 1 == done.returncode
    assert f"'{mounted}' cannot be removed: Device or resource busy" in done.stderr
    assert 3 == len(done.stderr.splitlines())
    # No longer mounted.
    cluster.end_cluster(files, "local", lambda _text: None)
    assert not files.root.exists()


@pytest.mark.parametrize(("cluster_folder", "is_left"), [("", False), ("2", True)])
def test_short_path_of_a_killed_test_is_removed(
    files: ClusterFiles, short_path: Path, cluster_folder: str, is_left: bool
) -> None:
    """A killed test leaves it in /tmp, for any TMPDIR. That of a running test of another cluster, or of none, stays."""
    (short_path / "t").symlink_to(f"{files.root}{cluster_folder}/workers/cpu-1/run")
    places.remove_files(files, None)
    assert (short_path / "t").is_symlink() is is_left


@pytest.mark.parametrize(
    ("text", "expected"), [("--staging-mode=MODE", ("--runner-arg=--staging-mode=copy-or-link",)), ("--remote=URL", ())]
)
def test_inputs_are_not_mounted(text: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    """A mount stays when a worker is killed. An option that an older runner does not know would end every action."""
    runner = tmp_path / "runner"
    runner.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    runner.chmod(0o755)
    assert expected == parts._staging_arguments(runner)
