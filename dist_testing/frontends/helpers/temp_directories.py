"""Folders that processes of a test started by hand share, found by environment variables."""

from __future__ import annotations

import os
import tempfile

__all__ = ["cleanup_temp_dir", "current_temp_dir", "initialize_temp_directories"]

_FOLDERS = ("barrier", "test_dir", "init_dir")

_current: list[tempfile.TemporaryDirectory[str]] = []


def initialize_temp_directories(init_method: str | None = None) -> None:
    """Make a folder with `barrier`, `test_dir` and `init_dir`; `TEMP_DIR` names it, `INIT_METHOD` a rendezvous.

    Args:
        init_method: For `INIT_METHOD`; by default a file in `init_dir`.
    """
    folder = tempfile.TemporaryDirectory()
    _current.append(folder)
    for name in _FOLDERS:
        os.mkdir(os.path.join(folder.name, name))
    os.environ["TEMP_DIR"] = folder.name
    os.environ["INIT_METHOD"] = init_method or f"file://{folder.name}/init_dir/shared_init_file"


def cleanup_temp_dir() -> None:
    """Remove what `initialize_temp_directories` has made, however often it was called."""
    while _current:
        _current.pop().cleanup()


def current_temp_dir() -> tempfile.TemporaryDirectory[str] | None:
    """The folder that was made last; None if there is none."""
    return _current[-1] if _current else None
