"""The exceptions of an installation from packages."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InstallError(Exception):
    """A failure that the user reads as three lines: what, why, way out.

    Args:
        what: Subject and observed values.
        cause: The likely cause.
        way_out: What the user can do.
    """

    def __init__(self, what: str, cause: str, way_out: str) -> None:
        super().__init__(f"{what}\n  {cause}\n  {way_out}")
        self.what = what
        self.cause = cause
        self.way_out = way_out


class DiskFullError(InstallError):
    """The file system of the cache has too little room.

    Args:
        path: An existing directory on it.
        needed_bytes: What the work takes; None if a write has failed.
    """

    def __init__(self, path: Path, needed_bytes: int | None) -> None:
        if needed_bytes is None:
            observed = "nothing more could be written"
        else:
            free_mb = shutil.disk_usage(path).free // 10**6
            observed = f"{free_mb} MB are free, and {needed_bytes // 10**6} MB are needed"
        super().__init__(
            f"disk full: {observed} under '{path}'.",
            "Programs are unpacked into the user cache.",
            "Free some space there, or set XDG_CACHE_HOME to a directory on a larger disk.",
        )


@contextmanager
def explained_os_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system below `path` into an `InstallError`.

    Args:
        path: An existing directory that the work inside writes to.

    Raises:
        InstallError: In place of any `OSError` that is raised inside.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(path, None) from error
        subject = error.filename or path
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InstallError(
                f"the cache cannot be written: '{subject}': {error.strerror}.",
                "The directory is read-only or belongs to another user.",
                "Make it writable, or set XDG_CACHE_HOME to a directory of your own.",
            ) from error
        raise InstallError(
            f"the operating system refused to work on '{subject}': {error.strerror or error}.",
            f"It happened while the cache below '{path}' was being filled.",
            "Remedy what it names, or set XDG_CACHE_HOME to another directory; then run again.",
        ) from error
