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

    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "mkdtemp", refuse_tmp)
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="/tmp"):
        RunDirectory({"TEST_TMPDIR": str(long)})
    assert os.listdir("/proc/self/fd") == descriptors
    assert not list(long.iterdir())


def test_a_folder_without_its_lock_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, each case leaves a folder and a descriptor behind on a network disk that has no locks."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No locks"):
        RunDirectory({"TEST_TMPDIR": str(tmp_path)})
    assert os.listdir("/proc/self/fd") == descriptors
    assert not list(tmp_path.iterdir())
