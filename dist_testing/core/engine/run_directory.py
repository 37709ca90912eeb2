"""Makes the folder of a run, and a short path to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dist_testing.core.engine.rank_logs import open_regular

# The path of a Unix socket has at most 107 bytes. This leaves room for the names that tests and libraries add.
_MAX_PATH_BYTES = 50
_PREFIX = "dist-"
# A file in each folder of a run. The runner and the fork server lock it as long as one of them lives. It also tells the
# folder of a run from a folder of another program with the same prefix.
_LIFE = ".dist-testing-life"


class RunDirectory:
    """The folder that holds all files of a run, and is removed with them.

    Attributes:
        path: The folder, in `TEST_TMPDIR` under Bazel.
        short: A path to the same folder that is short enough for sockets. Under Bazel it is a link in a private folder
            in /tmp, which the test encyclopedia allows for this purpose.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        """Make the folder. Raise OSError if it cannot be made."""
        self._folders: list[Path] = []
        self._lives: list[int] = []
        try:
            self.path = self.short = self._make(env.get("TEST_TMPDIR"))
            if len(os.fsencode(self.path)) > _MAX_PATH_BYTES:
                # Only this user can write to the private folder, so no other user can replace the link.
                self.short = self._make("/tmp") / "t"
                self.short.symlink_to(self.path)
        except BaseException:
            self.remove()
            raise

    def _make(self, parent: str | None) -> Path:
        """Make a folder, after removing the folders of dead runs."""
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._folders.append(path)
        _remove_dead(path.parent)
        # Lock the file before it gets the name that other runs look for.
        unborn = path / f"{_LIFE}.new"
        life = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._lives.append(life)
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unborn.rename(path / _LIFE)
        return path

    @property
    def all_paths(self) -> list[str]:
        """The folders to remove at the end."""
        return list(map(str, self._folders))

    def remove_files(self) -> None:
        """Remove all folders; processes that still use them can leave new files."""
        for path in self.all_paths:
            shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Remove all folders, when no process uses them."""
        self.remove_files()
        for life in self._lives:
            os.close(life)
        self._lives = []


def _remove_dead(parent: Path) -> None:
    """Remove the folders of dead runs.

    A run cleans up after itself, also when its runner is killed. It cannot if all its processes are killed at once, as
    Bazel does at the end of a test's time.
    """
    for life in parent.glob(f"{_PREFIX}*/{_LIFE}"):
        # It may be another user's, or of a living run, or another run is removing it now.
        with contextlib.suppress(OSError), open_regular(life, os.O_RDWR) as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(life.parent, ignore_errors=True)
