"""Finds out which files have changed: by their status, then by their content."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

# Two numbers of the status that every save changes, also one by rename, and the size.
_Status = tuple[int, int, int]
# The kernel's clock for files is this much coarser than Python's. Nanoseconds.
_CLOCK_STEP_NS = 20_000_000
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
# Folders that hold no tests.
_LEFT_OUT = ("__pycache__", "node_modules")


@functools.cache
def _python_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {os.path.realpath(path) for name in names if (path := sysconfig.get_paths().get(name))}
    return tuple(f"{path}{os.sep}" for path in found)


@functools.lru_cache(maxsize=1 << 14)
def is_third_party(path: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    if any(f"{os.sep}{folder}{os.sep}" in path for folder in _PACKAGE_FOLDERS):
        return True
    return path.startswith("<") or os.path.realpath(path).startswith(_python_folders())


def file_of(module: ModuleType) -> str | None:
    """Return the source or library file that a module was imported from; None if it has none."""
    spec = getattr(module, "__spec__", None)
    path = getattr(spec, "origin", None) if getattr(spec, "has_location", False) else None
    return os.path.abspath(path) if isinstance(path, str) else None


def own_files() -> list[str]:
    """Return the files of all modules that this process has imported, without third-party ones."""
    found = {path for module in list(sys.modules.values()) if (path := file_of(module)) and not is_third_party(path)}
    return sorted(found)


class Files:
    """The watched files, with the content that each had when it was last looked at."""

    def __init__(self) -> None:
        self._status: dict[str, _Status | None] = {}
        self._content: dict[str, bytes | None] = {}
        self._folders: dict[str, int] = {}
        self._trees: set[str] = set()

    def __contains__(self, path: str) -> bool:
        return path in self._status

    def __len__(self) -> int:
        return len(self._status)

    def add(self, paths: Iterable[str], since_ns: int) -> set[str]:
        """Watch more files, and the folders that they are in.

        Args:
            paths: The files; absolute.
            since_ns: When a process began to read them, by `time.time_ns`.

        Returns:
            Those that may have changed since then.
        """
        late = set()
        for path in paths:
            if path not in self._status:
                self._status[path], self._content[path] = _status_of(path), _content_of(path)
                status = self._status[path]
                if status is not None and status[1] > since_ns - _CLOCK_STEP_NS:
                    late.add(path)
                self._add_folder(os.path.dirname(path))
        return late

    def add_tree(self, folder: str) -> list[str]:
        """Watch a folder with all below it for new Python files; return those that are there now."""
        found = []
        self._trees.add(folder)
        for path, names, files in os.walk(folder):
            names[:] = [name for name in names if not (name.startswith(".") or name in _LEFT_OUT)]
            if "pyvenv.cfg" in files:
                names.clear()
                continue
            self._add_folder(path)
            found += [os.path.join(path, name) for name in files if name.endswith(".py")]
        return found

    def changed(self) -> set[str]:
        """Return the files that were changed, removed or created since the last call."""
        found = set()
        for path, before in self._status.items():
            if (status := _status_of(path)) != before:
                self._status[path] = status
                content = _content_of(path)
                if content != self._content[path]:
                    self._content[path] = content
                    found.add(path)
        for folder, before_ns in list(self._folders.items()):
            if (changed_ns := _changed_ns(folder)) != before_ns:
                self._folders[folder] = changed_ns
                found |= self._created_in(folder)
        return found

    def _add_folder(self, folder: str) -> None:
        if folder not in self._folders:
            self._folders[folder] = _changed_ns(folder)
            self._remember(folder)

    def _remember(self, folder: str) -> set[str]:
        created = set()
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                # Editors give hidden names to files of their own.
                is_source = entry.name.endswith(".py") and not entry.name.startswith(".")
                if is_source and entry.path not in self._status:
                    self._status[entry.path], self._content[entry.path] = (
                        _status_of(entry.path),
                        _content_of(entry.path),
                    )
                    created.add(entry.path)
        return created

    def _created_in(self, folder: str) -> set[str]:
        created = self._remember(folder)
        if any(f"{folder}{os.sep}".startswith(f"{tree}{os.sep}") for tree in self._trees):
            with contextlib.suppress(OSError):
                for entry in os.scandir(folder):
                    is_new = entry.path not in self._folders and not entry.name.startswith(".")
                    if is_new and entry.name not in _LEFT_OUT and entry.is_dir():
                        created.update(self.add_tree(entry.path))
        return created


def forget_compiled(paths: Iterable[str]) -> None:
    """Remove the compiled files of sources, also those of pytest.

    Python and pytest recognise an old one by the second of the last change and the size of the source. Two saves in one
    second can have both in common.
    """
    for path in paths:
        try:
            compiled = Path(importlib.util.cache_from_source(path))
        except NotImplementedError:
            continue
        for old in compiled.parent.glob(f"{Path(path).stem}.*.pyc"):
            old.unlink(missing_ok=True)


def _status_of(path: str) -> _Status | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    # The time of the last change of the inode covers a rename and a change of times.
    return found.st_mtime_ns, max(found.st_ctime_ns, found.st_mtime_ns), found.st_size


def _content_of(path: str) -> bytes | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        return None


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0
