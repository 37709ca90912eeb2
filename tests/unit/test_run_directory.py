"""The folder of a run."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.engine.run_directory import RunDirectory


def test_an_incomplete_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, each case leaves a folder and a descriptor behind, because a run asks again for each case."""
    make = tempfile.mkdtemp

    def refuse_tmp(*, prefix: str, dir: str | None) -> Any:  # noqa: A002  # mkdtemp's
        if dir == "/tmp":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), dir)
        return make(prefix=prefix, dir=dir)

    def refuse_lock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def check(folder: Path, said: str) -> None:
        descriptors = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match=said):
            RunDirectory({"TEST_TMPDIR": str(folder)})
        assert os.listdir("/proc/self/fd") == descriptors
        assert not list(folder.iterdir())

    long = tmp_path / ("x" * 60)
    long.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", refuse_tmp)
        check(long, "/tmp")
    # A network disk may have no locks.
    long.rmdir()
    monkeypatch.setattr(fcntl, "flock", refuse_lock)
    check(tmp_path, "No locks")
