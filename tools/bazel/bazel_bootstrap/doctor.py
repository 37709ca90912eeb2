"""`bazelw doctor`: which Bazels are here, which can be installed, and which one would be used."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from debian_prefix.apt import PrivateApt
from debian_prefix.cache import unfinished
from debian_prefix.errors import DiskFullError, InstallError

from bazel_bootstrap.debian import NEEDED_BYTES, refusal, select_packages
from bazel_bootstrap.release import is_reachable
from bazel_bootstrap.settings import RELEASE_URL_VARIABLE, Settings

# The version that `bazelw` passes for a bazelisk that it did not ask, because asking might download a Bazel.
_UNASKED = "unasked"


@dataclass(frozen=True, slots=True)
class PathBazel:
    """A `bazel` or `bazelisk` on PATH."""

    version: str  # the version that it reports; "" if it reports none
    path: Path  # where it is

    @classmethod
    def parse(cls, text: str) -> PathBazel:
        """Read `<version>=<path>`."""
        version, _, path = text.partition("=")
        return cls(version, Path(path))


@dataclass(frozen=True, slots=True)
class _Finding:
    """One line of the report; `usable` if this way gives a Bazel."""

    subject: str
    text: str
    usable: bool = False


def report(settings: Settings, path_bazels: list[PathBazel]) -> bool:
    """Print the findings, and return whether this machine can have a Bazel. Write only below the system's /tmp."""
    print(f"bazelw doctor: Bazel {settings.version} is pinned, {settings.fits_text} fits")
    machine = [
        _Finding("machine", f"{settings.system} on {settings.cpu}"),
        _Finding("python3", f"{platform.python_version()} ({sys.executable})"),
        _Finding("cache", _cache_state(settings.cache)),
    ]
    for finding in machine:
        _print(finding)
    # In bazelw's order: it uses the first usable one.
    ways = [
        *(_path_bazel(settings, bazel) for bazel in path_bazels),
        _cached("cached release", settings.release),
        _cached("cached Debian prefix", settings.debian),
    ]
    if not path_bazels:
        _print(_Finding("PATH", "neither bazel nor bazelisk"))
    for finding in ways:
        _print(finding)
    for line in _remains(settings):
        _print(_Finding("left over", line))
    for find in (_release_server, _debian_packages):
        ways.append(find(settings))
        _print(ways[-1])
    choice = next((finding for finding in ways if finding.usable), None)
    _print(_Finding("would use", f"{choice.subject}: {choice.text}" if choice else "nothing"))
    return choice is not None


def _print(finding: _Finding) -> None:
    print(f"  {finding.subject + ':':22}{finding.text}", flush=True)


def _path_bazel(settings: Settings, bazel: PathBazel) -> _Finding:
    if bazel.version == _UNASKED:
        text = f"{bazel.path} (not asked for its version, because it might download a Bazel)"
        return _Finding("PATH", text)
    if not settings.is_fitting(bazel.version):
        return _Finding("PATH", f"{bazel.path} is '{bazel.version or 'unknown'}': passed over")
    return _Finding("PATH", f"{bazel.path} is {bazel.version}: fits", usable=True)


def _cached(subject: str, file: Path) -> _Finding:
    if os.access(file, os.X_OK):
        return _Finding(subject, str(file), usable=True)
    return _Finding(subject, "none")


def _cache_state(cache: Path) -> str:
    existing = next(path for path in (cache, *cache.parents) if os.path.exists(path))
    state = "writable" if os.access(existing, os.W_OK) else "not writable"
    if existing != cache:
        state = f"does not exist yet, {state}"
    return f"{cache} ({state}, {shutil.disk_usage(existing).free / 1e9:.1f} GB free)"


def _remains(settings: Settings) -> list[str]:
    """Return a line for each entry of the cache that this version of bazelw does not use."""
    if not settings.cache.is_dir():
        return []
    partial = unfinished(settings.cache)
    # bazelw does not remove them: a Bazel server of another checkout may run from them.
    others = {entry for entry in settings.cache.iterdir() if entry.is_dir()} - {
        *partial,
        settings.release.parent,
        settings.debian.parent,
    }
    return [
        *(f"{entry} (unfinished; the next installation removes it)" for entry in partial),
        *(f"{entry} (of another version of bazelw; remove it when that is gone)" for entry in sorted(others)),
    ]


def _release_server(settings: Settings) -> _Finding:
    subject = "release server"
    try:
        file_name, url = settings.release_file, settings.release_url
    except InstallError as error:
        return _Finding(subject, str(error))
    if not url:
        return _Finding(subject, f"not asked, because {RELEASE_URL_VARIABLE} is empty")
    reason = is_reachable(settings, file_name)
    if reason is None:
        return _Finding(subject, f"{url} offers {file_name}", usable=True)
    return _Finding(subject, f"{url} is no help: {reason}")


def _debian_packages(settings: Settings) -> _Finding:
    subject = "Debian packages"
    try:
        if (error := refusal(settings)) is not None:
            raise error
        existing = next(path for path in settings.cache.parents if os.path.exists(path))
        if shutil.disk_usage(existing).free < NEEDED_BYTES:
            raise DiskFullError(existing, NEEDED_BYTES)
        with tempfile.TemporaryDirectory(prefix="bazelw-doctor-") as directory:
            found = select_packages(settings, PrivateApt(Path(directory), None))
    except InstallError as problem:
        return _Finding(subject, str(problem))
    text = f"{found.archive.uri} has Bazel {found.version} in its suite {found.suite}"
    return _Finding(subject, text, usable=True)
