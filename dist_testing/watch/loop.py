"""Waits for what a watch reacts to: changed files, commands, signals and the end of a run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import select
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, ModuleType

from dist_testing.watch.run import Run

# Seconds between two looks at the files, and until a second look at files that are being written.
_LOOK_S = 0.05
_SETTLE_S = 0.02
# A look at many files may take at most this part of the time.
_LOOK_SHARE = 0.05
_STDIN = 0
# Two numbers of the status that every save changes, also one by rename, and the size.
_Status = tuple[int, int, int]
# The kernel's clock for files is this much coarser than Python's. Nanoseconds.
_CLOCK_STEP_NS = 20_000_000
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_PYTHON_FOLDERS = tuple(
    f"{os.path.realpath(sysconfig.get_path(name))}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
# Folders that hold no tests.
_LEFT_OUT = ("__pycache__", "node_modules")


class EndWatchError(Exception):
    """The watch is over, by a signal; by the user if it is 0."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.signal = number


class Loop:
    """Serves the watcher. Use as a context manager; a run leaves it, too, and has the signal handlers of before."""

    def __init__(self) -> None:
        self.files = Files()
        self.changed: set[str] = set()  # files whose change is complete, until the watcher takes them
        self.commands: list[str] = []  # lines that the user has typed, until the watcher takes them
        self.has_terminal = os.isatty(_STDIN)
        self.run: Run | None = None  # the run to listen to
        self.is_debugging = False  # whether a debugger has the terminal: lines and Ctrl-C are its own, and saves wait
        self._typed = b""
        self._changing: set[str] = set()
        self._look_at_s = time.monotonic()
        self._ended_by = 0

    def __enter__(self) -> Loop:
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._old_handlers = {number: signal.signal(number, self._on_end) for number in ending}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def is_disturbed(self) -> bool:
        """Whether there is a save or a command. Those of a debugger's user are not for the watch."""
        return bool(self.changed or self.commands) and not self.is_debugging

    def wait(self, condition: Callable[[], object]) -> None:
        """Serve everything until the condition holds.

        An EndWatchError says that a signal ends the watch, or that the terminal is gone.
        """
        while not condition():
            self._once()
            if self._ended_by:
                raise EndWatchError(self._ended_by)

    def _once(self) -> None:
        poller = select.poll()
        if self.has_terminal and not self.is_debugging and _is_foreground():
            poller.register(_STDIN, select.POLLIN)
        run = self.run if self.run is not None and self.run.code is None else None
        if run is not None:
            poller.register(run.pidfd, select.POLLIN)
        # A signal does not end this: its handler only notes it. The pause until the next look can be long.
        wait_s = min(_LOOK_S, max(0.0, self._look_at_s - time.monotonic()))
        ready = {fd for fd, _ in poller.poll(1000 * wait_s)}
        if _STDIN in ready:
            self._read_commands()
        if run is not None and run.pidfd in ready:
            run.reap()
        elif run is not None:
            run.read()
            run.kill_late()
        if time.monotonic() >= self._look_at_s:
            self._look()

    def _read_commands(self) -> None:
        try:
            data = os.read(_STDIN, 4096)
        except OSError:
            data = b""
        # The end of the input is the end of the watch.
        *lines, self._typed = (self._typed + (data or b"\nq\n")).split(b"\n")
        self.commands += [line.decode(errors="replace").strip() for line in lines]

    def _look(self) -> None:
        began_s = time.monotonic()
        found = self.files.changed()
        pause_s = max(_LOOK_S, (time.monotonic() - began_s) / _LOOK_SHARE)
        if found:
            # An editor may write it in several steps, or several files.
            self._changing |= found
            pause_s = _SETTLE_S
        elif self._changing:
            self.changed |= self._changing
            self._changing = set()
        self._look_at_s = time.monotonic() + pause_s

    def _on_end(self, number: int, _: FrameType | None) -> None:
        if not (self.is_debugging and number == signal.SIGINT):
            self._ended_by = number


def _is_foreground() -> bool:
    """Return whether this job may read the terminal; the kernel stops a job in the background that reads it."""
    try:
        return os.tcgetpgrp(_STDIN) == os.getpgrp()
    except OSError:
        # The terminal is gone, and reading tells.
        return True


@functools.lru_cache(maxsize=1 << 14)
def is_third_party(path: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    if any(f"{os.sep}{folder}{os.sep}" in path for folder in _PACKAGE_FOLDERS):
        return True
    return path.startswith("<") or os.path.realpath(path).startswith(_PYTHON_FOLDERS)


def own_files(more: Iterable[ModuleType] = ()) -> set[str]:
    """Return the files of all modules that this process has imported, and of `more`, without third-party ones."""
    found = set()
    for module in [*sys.modules.values(), *more]:
        spec = getattr(module, "__spec__", None)
        path = getattr(spec, "origin", None) if getattr(spec, "has_location", False) else None
        if isinstance(path, str) and not is_third_party(path):
            found.add(os.path.abspath(path))
    return found


def sources_of(error: BaseException | None) -> set[str]:
    """Return the files that an error of an import, and its causes, have come through, without third-party ones."""
    found = set()
    while error is not None:
        found |= {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
        if isinstance(error, SyntaxError) and error.filename:
            found.add(error.filename)
        error = error.__cause__
    return {os.path.abspath(path) for path in found if not is_third_party(path)}


class Files:
    """The watched files, with the content that each had when it was last looked at."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[_Status | None, bytes | None]] = {}
        # The status of each watched folder, and whether the folders below it are watched, too.
        self._folders: dict[str, tuple[_Status | None, bool]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, paths: Iterable[str], since_ns: int) -> set[str]:
        """Watch files and their folders. Returns those that may have changed since a process began to read them."""
        late = set()
        for path in paths:
            if path not in self._seen:
                self._seen[path] = status, _ = _status_of(path), _content_of(path)
                if status is not None and status[1] > since_ns - _CLOCK_STEP_NS:
                    late.add(path)
                if os.path.dirname(path) not in self._folders:
                    self.add_folder(os.path.dirname(path), is_tree=False)
        return late

    def changed(self) -> set[str]:
        """Return the files that were changed, removed or created since the last call."""
        found = set()
        for path, (before, content) in self._seen.items():
            if (status := _status_of(path)) != before:
                self._seen[path] = status, _content_of(path)
                if self._seen[path][1] != content:
                    found.add(path)
        for folder, (before, is_tree) in list(self._folders.items()):
            if _status_of(folder) != before:
                found |= self.add_folder(folder, is_tree=is_tree)
        return found

    def add_folder(self, folder: str, *, is_tree: bool) -> set[str]:
        """Watch a folder, perhaps with all below it, for Python files; return those that were not watched yet."""
        created: set[str] = set()
        status = _status_of(folder)
        try:
            # Editors give hidden names to files of their own.
            entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
        except OSError:
            entries = []
        if is_tree and any(entry.name == "pyvenv.cfg" for entry in entries):
            return created
        self._folders[folder] = status, is_tree
        for entry in entries:
            if entry.name.endswith(".py") and entry.path not in self._seen:
                self._seen[entry.path] = _status_of(entry.path), _content_of(entry.path)
                created.add(entry.path)
            elif is_tree and entry.name not in _LEFT_OUT and not self._folders.get(entry.path, (None, False))[1]:
                created |= self.add_folder(entry.path, is_tree=True) if entry.is_dir(follow_symlinks=False) else set()
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
            # The folder may belong to another user.
            with contextlib.suppress(OSError):
                old.unlink()


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
