"""Builds Python without the GIL: no package of Debian has it, but Debian's archive has the sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from debian_prefix.apt_sources import archives

from version_runs.commands import run
from version_runs.errors import VersionsError

ETC_APT = Path("/etc/apt")
# Silence of the archive, and the build, which takes five minutes on two CPUs. Seconds.
_STALL_LIMIT_S = 20.0
_BUILD_LIMIT_S = 3600.0
# In a folder that is complete.
FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Source:
    """The sources of one release.

    Attributes:
        release: Such as "3.14.7".
        sha256: Digest of the file; the archive's own list has that of the newest release only.
    """

    release: str
    sha256: str

    @property
    def path(self) -> str:
        """Its file, from the root of the archive."""
        package = f"python{'.'.join(self.release.split('.')[:2])}"
        return f"pool/main/p/{package}/{package}_{self.release}.orig.tar.xz"


SOURCES = {"3.14t": Source("3.14.7", "3b48dac8fb59f62eaa67ac83c1eb12bda1b7a08406dd286e252c11a66be27f81")}


def built(version: str, folder: Path, source: Source | None, etc_apt: Path = ETC_APT) -> Path:
    """Return the interpreter of a version, built below `folder` if it is not there yet.

    Args:
        version: Such as "3.14t".
        folder: Place for the build; it needs 1 GB while it runs.
        source: Its sources; None if they are not known.
        etc_apt: The folder of apt's configuration, which names the archives.

    Raises:
        VersionsError: If no archive has the sources, or they cannot be built.
    """
    if source is None:
        raise VersionsError("its sources are not known", "source_build.py lists them.", "Add a line there.")
    prefix = folder / f"python{version}-built"
    if not (prefix / FINISHED).exists():
        shutil.rmtree(prefix, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="dist-build-", dir=folder) as work:
            _build(_unpacked(source, Path(work), etc_apt), prefix)
        (prefix / FINISHED).touch()
    return prefix / "bin" / f"python{version}"


def _unpacked(source: Source, work: Path, etc_apt: Path) -> Path:
    reasons = []
    for archive in archives(etc_apt):
        uri = f"{archive.uri.rstrip('/')}/{source.path}"
        try:
            with urllib.request.urlopen(uri, timeout=_STALL_LIMIT_S) as answer:
                content = answer.read()
        except (OSError, ValueError) as error:
            reasons.append(f"{uri}: {error}")
            continue
        digest = hashlib.sha256(content).hexdigest()
        if digest != source.sha256:
            reasons.append(f"{uri} has sha256 {digest}, expected {source.sha256}")
            continue
        file = work / "source.tar.xz"
        file.write_bytes(content)
        with tarfile.open(file) as tar:
            tar.extractall(work, filter="data")
        return next(path.parent for path in work.glob("*/configure"))
    raise VersionsError(
        f"Debian's archive does not give the sources of Python {source.release}",
        "; ".join(reasons) or f"'{etc_apt}' names no archive.",
        "Use another interpreter.",
    )


def _build(tree: Path, prefix: Path) -> None:
    jobs = f"--jobs={len(os.sched_getaffinity(0))}"
    for command in (
        ["./configure", "--quiet", "--disable-gil", "--without-ensurepip", f"--prefix={prefix}"],
        ["make", "--silent", jobs],
        ["make", "--silent", "altinstall"],
    ):
        try:
            ended = run(command, _BUILD_LIMIT_S, cwd=tree)
        except OSError as error:
            raise VersionsError("it cannot be built", f"{command[0]}: {error}.", "Install make and gcc.") from error
        if ended.status != 0:
            raise VersionsError(
                "it cannot be built",
                f"'{' '.join(command[:2])}' ended with status {ended.status}: {ended.last_lines}",
                "Install a C compiler, make, and the headers of zlib, libffi and OpenSSL.",
            )
