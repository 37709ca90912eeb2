"""The folder of a run, and a short way to it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["RunDirectory"]

# The path of a Unix socket has at most 107 bytes; this leaves some for the names that tests and libraries make up.
_MAX_PATH_BYTES = 50


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
        self.path = Path(tempfile.mkdtemp(prefix="dist-", dir=env.get("TEST_TMPDIR")))
        self.short = self.path
        self._private: Path | None = None
        if len(os.fsencode(self.path)) > _MAX_PATH_BYTES:
            # mkdtemp's folder is this user's alone, so nobody else can put another link there.
            self._private = Path(tempfile.mkdtemp(prefix="dist-", dir="/tmp"))
            self.short = self._private / "t"
            self.short.symlink_to(self.path)

    @property
    def all_paths(self) -> list[str]:
        """What has to be removed at the end."""
        return [str(path) for path in (self.path, self._private) if path is not None]

    def remove(self) -> None:
        """Remove everything."""
        for path in self.all_paths:
            shutil.rmtree(path, ignore_errors=True)
