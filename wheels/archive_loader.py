"""Puts the packages of an archive on sys.path, on a machine that got them as one file.

On an executor, a test does not have a site-packages of 20,000 files. It has one archive and a folder of stubs: for
every package a module of its name, which calls `give_way`. The first import of a stub unpacks the archive into a cache
of this machine, replaces the stubs by the unpacked folder on sys.path, and imports the real module.

The key of the cache is the digest of the archive, which is checked before it is unpacked. The cache belongs to one user
and removes the least recently used entries. If no cache is possible, every process tree unpacks for itself.
These variables are read:

- `DIST_TESTING_WHEELS_CACHE`: folder of the cache. Default: `dist_testing/wheels` in the user's cache folder.
- `DIST_TESTING_WHEELS_CACHE_BYTES`: size of the cache, besides entries in use. Default: 16 GiB.

This file is copied beside the stubs, so it imports only the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import hashlib
import importlib
import json
import os
import platform
import shutil
import site
import stat
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "DIST_TESTING_WHEELS_CACHE"
LIMIT_VARIABLE = "DIST_TESTING_WHEELS_CACHE_BYTES"

# Space for three installations of torch with CUDA. Bytes.
_DEFAULT_LIMIT_BYTES = 16 << 30

# Errors of a file system that cannot lock, or has become read-only. The tests can run without a cache.
_NO_CACHE = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EROFS)

# Bytes of the archive that are read and written at a time.
_CHUNK_BYTES = 1 << 20

# Locks of the unpacked folders that this process uses; the system releases them when it ends.
_held: list[int] = []


class WheelsArchiveError(ImportError):
    """The packages of an archive cannot be used on this machine."""


@dataclass(frozen=True, slots=True)
class _Description:
    """`site.json`: sha256 of the archive, bytes of its files, and the interpreter they were made for."""

    sha256: str
    bytes: int
    python: str
    machine: str


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An unpacked archive."""

    folder: Path  # has `site-packages` and, beside it, an empty virtual environment

    @property
    def site_packages(self) -> Path:
        """The folder for sys.path."""
        return self.folder / "site-packages"

    @property
    def python(self) -> Path:
        """This interpreter, without the packages that are installed into it."""
        return self.folder / "environment" / "bin" / "python3"


def give_way(name: str, stub_file: str) -> None:
    """Import the real module instead of a stub, by `__name__` and `__file__` of the stub.

    Raises:
        WheelsArchiveError: If the archive is not for this interpreter, is damaged or does not fit on the disk.
    """
    stubs = os.path.dirname(stub_file)
    if stub_file.endswith("__init__.py"):
        stubs = os.path.dirname(stubs)
    activate(stubs)
    del sys.modules[name]
    importlib.import_module(name)


def activate(stubs: str) -> None:
    """Put the real packages in the place of a folder of stubs, as sys.path has it.

    Raises:
        WheelsArchiveError: As give_way.
    """
    entry = unpacked(Path(stubs).parent)
    real = str(entry.site_packages)
    sys.path[:] = _replaced(sys.path, stubs, real)
    # Processes that this one starts must find the same folder.
    if inherited := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(_replaced(inherited.split(os.pathsep), stubs, real))
    if sys.prefix == sys.base_prefix:
        _leave_installation(entry)
    importlib.invalidate_caches()


def _replaced(entries: list[str], stubs: str, real: str) -> list[str]:
    replaced = [real if entry.rstrip("/") == stubs else entry for entry in entries]
    return replaced if real in replaced else [real, *replaced]


def _leave_installation(entry: CacheEntry) -> None:
    """Remove this machine's installed packages from sys.path: tests see only the packages of their deps."""
    installed = {os.path.realpath(path) for path in (*site.getsitepackages(), site.getusersitepackages())}
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) not in installed]
    sys.executable = str(entry.python)


def unpacked(archive: Path) -> CacheEntry:
    """Return the unpacked archive of a folder with `site.tar` and `site.json`; unpack it if it is not in the cache.

    Raises:
        WheelsArchiveError: As give_way.
    """
    description = _describe(archive / "site.json")
    # The virtual environment beside the packages belongs to one interpreter.
    interpreter = hashlib.sha256(os.path.realpath(sys.executable).encode()).hexdigest()[:8]
    key = f"{description.sha256}-{interpreter}"
    tar = archive / "site.tar"
    cache = _cache()
    if cache is not None:
        try:
            return _cached(cache, key, tar, description)
        except OSError as error:
            if error.errno not in _NO_CACHE:
                raise WheelsArchiveError(
                    f"{cache}: the cache of unpacked Python packages cannot be used ({error}).\n"
                    "The disk is full, or other users can change the folder, or this user cannot.\n"
                    f"Free some space, or name another folder: --test_env={CACHE_VARIABLE}=/path."
                ) from None
    if chosen := os.environ.get(CACHE_VARIABLE):
        print(
            f"WARNING: {CACHE_VARIABLE}={chosen}: no cache can be there; this test unpacks its packages for itself.\n"
            "The folder is another user's, others can write to it, or its disk is full, read-only or without locks.\n"
            "Name a folder that only this user can write, or drop the variable for the user's cache.",
            file=sys.stderr,
        )
    return _private(tar, description)


def _cached(cache: Path, key: str, tar: Path, description: _Description) -> CacheEntry:
    lock = os.open(cache / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        entry = CacheEntry(cache / key)
        while True:
            # Held until this process ends, so that no process removes a folder in use.
            fcntl.flock(lock, fcntl.LOCK_SH)
            if entry.folder.is_dir():
                # The time of the last use.
                os.utime(lock)
                _held.append(lock)
                return entry
            # A second process waits here, and then finds the folder. Returning to the shared lock takes two steps:
            # between them, a process that needs space may remove the folder again.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not entry.folder.is_dir():
                _make_room(cache, description.bytes)
                _unpack(tar, description, entry.folder)
    except BaseException:
        os.close(lock)
        raise


def _private(tar: Path, description: _Description) -> CacheEntry:
    parent = os.environ.get("TEST_TMPDIR")
    try:
        folder = Path(tempfile.mkdtemp(prefix="wheels-", dir=parent))
    except OSError as error:
        raise _no_room(tar, description, Path(parent or "/tmp"), error) from None
    atexit.register(_remove_if_ours, folder, os.getpid())
    return _unpack(tar, description, folder / "unpacked")


def _describe(file: Path) -> _Description:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        description = _Description(
            str(found["sha256"]), int(found["bytes"]), str(found["python"]), str(found["machine"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WheelsArchiveError(
            f"{file}: cannot be read ({type(error).__name__}: {error}).\n"
            "It describes the archive of Python packages of this test.\n"
            "Fetch the packages again: bazel clean --expunge, and the command again."
        ) from None
    here = (sys.implementation.cache_tag, platform.machine())
    if here != (description.python, description.machine):
        raise WheelsArchiveError(
            f"{sys.executable} on {platform.node()}: {here[0]} on {here[1]}, but the packages of this test are for "
            f"{description.python} on {description.machine}.\n"
            "They were installed for the interpreter of the machine that runs Bazel.\n"
            "Give the workers that Python, or install the packages for theirs (docs/wheels.md)."
        )
    return description


def _cache() -> Path | None:
    """Return the folder of the cache; None if there is no folder that only this user can write."""
    try:
        # A relative path counts as unset.
        given = os.environ.get("XDG_CACHE_HOME", "")
        usual = Path(given if given.startswith("/") else Path.home() / ".cache", "dist_testing", "wheels")
    except RuntimeError:
        # There is no such user, which is common in containers.
        usual = None
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen and not chosen.startswith("/"):
        raise WheelsArchiveError(
            f"{CACHE_VARIABLE}={chosen!r}: not an absolute path.\n"
            "Each test would unpack the packages into its own working directory.\n"
            "Write the whole path, or drop the variable for the user's cache."
        )
    cache = Path(chosen) if chosen else usual
    if cache is None:
        return None
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = cache.stat()
        # Another user who can write there could put code into our tests.
        if state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        with tempfile.TemporaryFile(dir=cache):
            return cache
    except OSError:
        return None


def _limit_bytes() -> int:
    text = os.environ.get(LIMIT_VARIABLE)
    if text is None:
        return _DEFAULT_LIMIT_BYTES
    if not text.isdecimal():
        raise WheelsArchiveError(
            f"{LIMIT_VARIABLE}={text!r}: not a number of bytes.\n"
            "It limits the cache of unpacked Python packages on this machine.\n"
            f"Correct it, or drop it for {_DEFAULT_LIMIT_BYTES}."
        )
    return int(text)


def _make_room(cache: Path, needed: int) -> None:
    """Remove the least recently used entries that no process uses, until `needed` bytes fit under the limit."""
    limit = _limit_bytes()
    total = needed
    for lock in sorted(cache.glob("*.lock"), key=lambda path: path.stat().st_mtime, reverse=True):
        folder = lock.with_suffix("")
        unfinished = _unfinished(folder)
        with contextlib.suppress(OSError, ValueError):
            total += int((folder / "size").read_text(encoding="ascii"))
        is_too_much = total > limit and folder.is_dir()
        if not is_too_much and not unfinished.is_dir():
            continue
        with _exclusive(lock) as is_free:
            if is_free:
                # Left by a killed process.
                shutil.rmtree(unfinished, ignore_errors=True)
                if is_too_much:
                    # Renamed first: a folder with the right name is always complete.
                    folder.rename(unfinished)
                    shutil.rmtree(unfinished, ignore_errors=True)


def _unfinished(folder: Path) -> Path:
    return folder.with_name(folder.name + ".unfinished")


@contextlib.contextmanager
def _exclusive(lock: Path) -> Iterator[bool]:
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def _remove_if_ours(folder: Path, pid: int) -> None:
    # Forked ranks that end by sys.exit run this, too.
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(tar: Path, description: _Description, folder: Path) -> CacheEntry:
    """Unpack under another name, check, and rename: a folder with the right name is complete."""
    unfinished = _unfinished(folder)
    # Left by a killed process: this process has the lock now.
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _extract(tar, description, CacheEntry(unfinished).site_packages)
        _make_environment(unfinished / "environment")
        (unfinished / "size").write_text(str(description.bytes), encoding="ascii")
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise _no_room(tar, description, folder.parent, error) from None
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return CacheEntry(folder)


def _no_room(tar: Path, description: _Description, folder: Path, error: OSError) -> WheelsArchiveError:
    return WheelsArchiveError(
        f"{tar}: cannot be unpacked into {folder} ({error}).\n"
        f"It takes {description.bytes >> 20} MiB.\n"
        f"Free some space, or name another folder: --test_env={CACHE_VARIABLE}=/path."
    )


def _extract(tar: Path, description: _Description, site_packages: Path) -> None:
    site_packages.mkdir(parents=True)
    made = {site_packages}
    with tar.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != description.sha256:
            raise WheelsArchiveError(_damaged(tar, f"sha256 {found} instead of {description.sha256}"))
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r|", bufsize=_CHUNK_BYTES) as archive:
                for member in archive:
                    path = site_packages / member.name
                    content = archive.extractfile(member) if member.isreg() else None
                    if content is None or ".." in path.parts or site_packages not in path.parents:
                        raise WheelsArchiveError(_damaged(tar, f"a member {member.name!r} that is not a plain file"))
                    if path.parent not in made:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        made.add(path.parent)
                    mode = 0o755 if member.mode & 0o100 else 0o644
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                    with open(os.open(path, flags, mode), "wb") as out:
                        shutil.copyfileobj(content, out, _CHUNK_BYTES)
        except tarfile.TarError as error:
            raise WheelsArchiveError(_damaged(tar, str(error))) from None


def _damaged(tar: Path, observed: str) -> str:
    return (
        f"{tar}: {observed}.\n"
        "The archive differs from the one that was made from the lock file: it was damaged or changed.\n"
        "Check the executor's storage; no file of it was used."
    )


def _make_environment(folder: Path) -> None:
    """Make an empty virtual environment of this interpreter, as tests that run locally have it."""
    base = os.path.realpath(sys.executable)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python3").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n", encoding="utf-8"
    )
