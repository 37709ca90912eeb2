"""The cache directory: its place, free space, its lock, entries that are made once, and leftovers of a killed run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from debian_prefix.console import progress, say
from debian_prefix.errors import DiskFullError, InstallError, explained_os_errors

# Suffix of an entry that is being written. Only the holder of the lock writes, so an entry with this
# suffix that the holder finds is the leftover of a killed run.
PARTIAL = ".partial"
# The last file written into a Debian prefix, by rename: a prefix without it is unfinished.
LAUNCHER = "bazel"
# The last file written into an entry of `make_once`: an entry without it is unfinished.
FINISHED = "finished"


def user_cache(name: str) -> Path:
    """Return a directory of this repository's programs in the user cache.

    Raises:
        InstallError: If no variable names the user cache.
    """
    # The rule is that a relative XDG_CACHE_HOME counts as unset.
    for variable, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        if os.environ.get(variable, "").startswith("/"):
            return Path(os.environ[variable], below, "dist_testing", name)
    raise InstallError(
        "neither HOME nor XDG_CACHE_HOME is an absolute path.",
        "The program keeps its files in the user cache.",
        "Set HOME, or XDG_CACHE_HOME to a writable absolute path.",
    )


def make_once(folder: Path, needed_bytes: int, make: Callable[[Path, int], None]) -> None:
    """Make a folder of the cache, unless a run has finished it.

    Args:
        folder: The folder, directly below the cache.
        needed_bytes: Space that its making takes.
        make: Fills the empty folder; called with it and with the descriptor of the cache's lock.

    Raises:
        InstallError: If the cache cannot be written; nothing is left of the folder if it or `make` fails.
    """
    if (folder / FINISHED).exists():
        return
    cache = folder.parent
    with locked(cache) as lock, explained_os_errors(cache):
        if (folder / FINISHED).exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        require_free_space(cache, needed_bytes)
        folder.mkdir()
        try:
            make(folder, lock)
            (folder / FINISHED).touch()
        finally:
            if not (folder / FINISHED).exists():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(cache: Path) -> Iterator[int]:
    """Create the cache directory and hold its lock.

    A second run waits and says so. Programs that write into the cache inherit the descriptor. The kernel
    drops the lock when the last process that has the descriptor ends, so the lock outlives a killed run
    until its children have ended.

    Args:
        cache: The directory to fill; created with its parents.

    Yields:
        The lock's descriptor, to pass on to such programs.

    Raises:
        InstallError: If the directory cannot be created or written.
    """
    with explained_os_errors(_existing_ancestor(cache)):
        cache.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(cache / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with explained_os_errors(cache):
            _acquire(descriptor)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            remove_leftovers(cache)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_leftovers(cache: Path) -> None:
    """Delete what killed runs have left unfinished. The caller holds the lock."""
    for entry in unfinished(cache):
        say(f"removing '{entry.name}', which an interrupted run left unfinished")
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def unfinished(cache: Path) -> list[Path]:
    """Return the entries of the cache that no run has finished."""
    return [
        entry
        for entry in sorted(cache.iterdir())
        if entry.name.endswith(PARTIAL) or (entry.name.startswith("debian-") and not (entry / LAUNCHER).exists())
    ]


def require_free_space(path: Path, needed_bytes: int) -> None:
    """Fail before the work starts, not in the middle of it.

    Raises:
        DiskFullError: If the file system of `path` has less room than `needed_bytes`.
    """
    if shutil.disk_usage(path).free < needed_bytes:
        raise DiskFullError(path, needed_bytes)


def _acquire(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        say(f"another run (process {holder}) is filling the cache; waiting for it to finish")
        with progress(f"waiting for process {holder}"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _existing_ancestor(path: Path) -> Path:
    # Unlike Path.exists, this is False below a directory that we may not enter.
    while not os.path.exists(path):
        path = path.parent
    return path
