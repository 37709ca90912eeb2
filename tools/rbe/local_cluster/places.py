"""Where a cluster keeps what it writes.

    <user cache>/dist_testing/rbe/clusters/<name>/   lock, state, logs, storage, workers
    /tmp/dist-rbe-XXXXXXXX/                          the database and the sockets, whose paths must be short

All of it goes with `down`.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError

DEFAULT_NAME = "local"
SCRATCH_PREFIX = "dist-rbe-"
SCRATCH_PARENT = Path("/tmp")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


def cache_root() -> Path:
    """The directory in the user cache.

    Raises:
        ClusterError: If nothing says where the user cache is.
    """
    # The rule is that a relative XDG_CACHE_HOME counts as unset.
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("HOME", "")
    if given.startswith("/"):
        return Path(given) / "dist_testing/rbe"
    if home.startswith("/"):
        return Path(home) / ".cache/dist_testing/rbe"
    raise ClusterError(
        f"neither HOME ('{home}') nor XDG_CACHE_HOME ('{given}') names a directory.",
        "The cluster keeps its files in the user cache.",
        "Set HOME, or XDG_CACHE_HOME to a writable absolute path.",
    )


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """The files of one cluster in the user cache.

    Attributes:
        root: Its directory.
    """

    root: Path

    @property
    def lock(self) -> Path:
        """Locked by the supervisor for as long as it lives."""
        return self.root / "lock"

    @property
    def state(self) -> Path:
        """What other commands need to find the supervisor."""
        return self.root / "state.json"

    @property
    def logs(self) -> Path:
        """One file for each part."""
        return self.root / "logs"

    @property
    def storage(self) -> Path:
        """The server's storage of inputs and outputs."""
        return self.root / "storage"

    @property
    def server_config(self) -> Path:
        """BuildGrid's configuration."""
        return self.root / "server.yml"

    def worker(self, name: str) -> Path:
        """Everything that one worker writes."""
        return self.root / "workers" / name


@dataclass(frozen=True, slots=True)
class Scratch:
    """The directory of sockets and the database.

    Attributes:
        root: A directory below /tmp, which only this user may enter.
    """

    root: Path

    @property
    def control(self) -> Path:
        """Socket on which the supervisor takes requests."""
        return self.root / "control"

    @property
    def database(self) -> Path:
        """PostgreSQL's own directory; its socket is beside its data."""
        return self.root / "db"

    def storage_socket(self, worker: str) -> Path:
        """Socket of a worker's storage."""
        return self.root / f"{worker}.casd"


def cluster_files(name: str) -> ClusterFiles:
    """Return the files of the cluster with a name.

    Raises:
        ClusterError: If it can be no name.
    """
    if not _NAME.fullmatch(name):
        raise ClusterError(
            f"--name '{name}' can be no name of a cluster.",
            "It becomes the name of a directory: up to 32 letters, digits, '-' and '_'.",
            "Choose another, or leave it out.",
        )
    return ClusterFiles(cache_root() / "clusters" / name)


def remove_files(files: ClusterFiles, scratch: Scratch | None) -> None:
    """Remove everything that a cluster has written; nothing of it runs any more."""
    if scratch is not None:
        shutil.rmtree(scratch.root, ignore_errors=True)
    # The state goes first: a directory with state is a cluster that must be cleaned up.
    files.state.unlink(missing_ok=True)
    shutil.rmtree(files.root, ignore_errors=True)
