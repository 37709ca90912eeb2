"""The places of a cluster's files.

    <user cache>/dist_testing/rbe/clusters/<name>/   state, logs, storage, workers
    <user cache>/dist_testing/rbe/clusters/<name>.lock
    /tmp/dist-rbe-XXXXXXXX/   the database, the sockets (their paths must be short), and the /tmp of workers and actions
    /tmp/dist-XXXXXXXX/       left by a killed test: a short path to its folder below the first

`down` removes all of it but the lock.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from debian_prefix.cache import user_cache

from local_cluster.errors import ClusterError

DEFAULT_NAME = "local"
SCRATCH_PREFIX = "dist-rbe-"
SCRATCH_PARENT = Path("/tmp")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
# Short paths of tests, and the link in each (core/engine/run_directory.py). A test that is killed with all its
# processes at once leaves one behind.
_SHORT_WAYS = "dist-*"
_SHORT_WAY_LINK = "t"


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """The files of one cluster in the user cache."""

    root: Path  # its directory

    @property
    def lock(self) -> Path:
        """The lock that the supervisor holds as long as it lives. It stays, because a removed file locks nothing."""
        # A cluster's name never contains a dot.
        return self.root.with_name(f"{self.root.name}.lock")

    @property
    def state(self) -> Path:
        """The state file, from which other commands find the supervisor."""
        return self.root / "state.json"

    @property
    def logs(self) -> Path:
        """The logs, one file per part."""
        return self.root / "logs"

    @property
    def storage(self) -> Path:
        """The server's storage of inputs and outputs."""
        return self.root / "storage"

    @property
    def wheels(self) -> Path:
        """The folder where workers unpack the archives of Python packages that tests bring."""
        return self.root / "wheels"

    @property
    def server_config(self) -> Path:
        """BuildGrid's configuration."""
        return self.root / "server.yml"

    def worker(self, name: str) -> Path:
        """The folder of everything that one worker writes."""
        return self.root / "workers" / name


@dataclass(frozen=True, slots=True)
class Scratch:
    """The directory of sockets and the database."""

    root: Path  # a directory below /tmp, which only this user may enter

    @property
    def control(self) -> Path:
        """The socket on which the supervisor takes requests."""
        return self.root / "control"

    @property
    def database(self) -> Path:
        """PostgreSQL's own directory; its socket is beside its data."""
        return self.root / "db"

    @property
    def temporary(self) -> Path:
        """Temporary files of the workers and their actions. Workers leave some behind when they end."""
        return self.root / "tmp"

    def storage_socket(self, worker: str) -> Path:
        """The socket of a worker's storage."""
        return self.root / f"{worker}.casd"


def cluster_files(name: str) -> ClusterFiles:
    """Return the files of the cluster with a name.

    Raises:
        ClusterError: If the name is not allowed.
        InstallError: If no variable names the user cache.
    """
    if not _NAME.fullmatch(name):
        raise ClusterError(
            f"--name '{name}' cannot be the name of a cluster.",
            "It becomes the name of a directory: up to 32 letters, digits, '-' and '_'.",
            "Choose another, or leave it out.",
        )
    return ClusterFiles(user_cache("rbe") / "clusters" / name)


def remove_files(files: ClusterFiles, scratch: Scratch | None) -> None:
    """Remove all files of a cluster. None of its processes runs any more, and the caller holds its lock.

    Raises:
        ClusterError: If a file cannot be removed.
    """
    _remove_short_ways(files)
    if scratch is not None:
        _remove_tree(scratch.root)
    if files.root.exists():
        # The state last: with it, `down` finds the rest after a removal that was interrupted or failed.
        for path in files.root.iterdir():
            if path.is_dir():
                _remove_tree(path)
        _remove_tree(files.root)


def _remove_tree(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    if not root.exists():
        return
    # Actions' inputs and outputs may be in folders without write permission.
    with suppress(OSError):
        root.chmod(0o700)
    for folder, folders, _ in os.walk(root):
        for path in (Path(folder, name) for name in folders):
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    try:
        shutil.rmtree(root)
    except FileNotFoundError:
        # Another command removes it at the same time.
        return
    except OSError as error:
        raise ClusterError(
            f"'{root}' cannot be removed: {error.strerror} ('{error.filename}').",
            "It belongs to another user, or something is mounted there.",
            f"Remove '{root}' by hand.",
        ) from error


def _remove_short_ways(files: ClusterFiles) -> None:
    """Remove the folders in /tmp whose link leads into this cluster's directory."""
    roots = {str(files.root), os.path.realpath(files.root)}
    for folder in SCRATCH_PARENT.glob(_SHORT_WAYS):
        # It belongs to another user, or another process has just removed it.
        with suppress(OSError):
            state = folder.lstat()
            if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid():
                target = os.readlink(folder / _SHORT_WAY_LINK)
                if any(target.startswith(f"{root}/") for root in roots):
                    shutil.rmtree(folder)
