"""The folder of a run, and a short way to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["RunDirectory"]

# The path of a Unix socket has at most 107 bytes; this leaves some for the names that tests and libraries make up.
_MAX_PATH_BYTES = 50
_PREFIX = "dist-"
# In each folder of a run, locked by the runner and the template as long as one of them lives. Nobody else's folder has
# a file of this name, whatever its own name is.
_LIFE = ".dist-testing-life"


class RunDirectory:
    """Everything that a run writes is in here, and goes with it.

    Attributes:
        path: The folder, in `TEST_TMPDIR` under Bazel.
        short: The same folder by a path that is short enough for sockets in it. Under Bazel that is a link in a
            private folder in /tmp, which the test encyclopedia allows for this purpose.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        """Make the folder.

        Raises:
            OSError: If it cannot be made.
        """
        self._lives: list[int] = []
        self._private: Path | None = None
        self.path = self._make(env.get("TEST_TMPDIR"))
        self.short = self.path
        if len(os.fsencode(self.path)) > _MAX_PATH_BYTES:
            try:
                # The folder is this user's alone, so nobody else can put another link there.
                self._private = self._make("/tmp")
                self.short = self._private / "t"
                self.short.symlink_to(self.path)
            except BaseException:
                self.remove()
                raise

    def _make(self, parent: str | None) -> Path:
        """A folder, after those of dead runs have been removed.

        A run cleans up after itself, also when its runner is killed; but nobody is left to if all of it is killed at
        once, as Bazel does at the end of a test's time.
        """
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        for other in path.parent.glob(f"{_PREFIX}*/{_LIFE}"):
            # Another user's, or one that another start is removing just now.
            with contextlib.suppress(OSError):
                _remove_if_dead(other)
        # Locked before it has the name by which others look for it.
        unborn = path / f"{_LIFE}.new"
        life = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._lives.append(life)
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unborn.rename(path / _LIFE)
        return path

    @property
    def all_paths(self) -> list[str]:
        """What has to be removed at the end."""
        return [str(path) for path in (self.path, self._private) if path is not None]

    def remove(self) -> None:
        """Remove everything."""
        for path in self.all_paths:
            shutil.rmtree(path, ignore_errors=True)
        for life in self._lives:
            os.close(life)
        self._lives = []


def _remove_if_dead(life: Path) -> None:
    """Remove the folder of a run whose processes are gone.

    Raises:
        OSError: If it lives, or is not this user's.
    """
    descriptor = os.open(life, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(life.parent, ignore_errors=True)
    finally:
        os.close(descriptor)
