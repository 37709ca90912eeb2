"""Which of Debian's packages Bazel needs to run, where they are, and how they are unpacked."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bazel_bootstrap.apt import Package, PrivateApt
from bazel_bootstrap.apt_sources import Archive, archives
from bazel_bootstrap.console import progress, say
from bazel_bootstrap.errors import BootstrapError
from bazel_bootstrap.programs import ProgramError, run_pipe
from bazel_bootstrap.settings import Settings

APT_CONFIGURATION = Path("/etc/apt")
# Suites that carry `bazel-bootstrap`, the preferred one first.
SUITES = ("forky", "sid")
# libblake3-0 is needed by Bazel's JNI library, and no package says so.
PACKAGES = ("bazel-bootstrap", "libblake3-0")
# Dependencies for building with Bazel or for setting up a Debian system, not for running Bazel.
_NOT_NEEDED = re.compile(
    "|".join(
        (
            r"(openjdk-\d+|default)-jdk-headless",
            # Compilers, their headers and tools.
            r"gcc|g\+\+|cpp|make|build-essential|dpkg-dev|libc6-dev|linux-libc|binutils",
            r"lib(gcc|stdc\+\+)-\d+-dev|lib(a|t|hwa|l|ub)san|libbinutils|libgprofng",
            # Other languages; the machine has its own python3.
            r"perl|libperl\d|python3|libpython3|node|libjs",
            # A system's own machinery.
            r"debconf|systemd|util-linux|passwd|adduser|mount$|bubblewrap",
            # The machine's certificates are used.
            r"openssl$|ca-certificates$",
        )
    )
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The packages to unpack, and where they come from.

    Attributes:
        archive: The archive, one of apt's own.
        suite: Debian's suite, such as "forky".
        version: Version of Bazel's package there.
        packages: What to download.
    """

    archive: Archive
    suite: str
    version: str
    packages: tuple[Package, ...]


def select_packages(settings: Settings, apt: PrivateApt) -> Selection:
    """Return the first archive and suite that have a fitting Bazel. Downloads indexes only.

    Raises:
        BootstrapError: If there is none; it names what every archive answered.
    """
    failures = []
    for archive in archives(APT_CONFIGURATION):
        for suite in SUITES:
            try:
                with progress(f"reading the package index of '{suite}'"):
                    apt.select(archive, suite)
                    packages = apt.closure(*PACKAGES)
            except ProgramError as error:
                failures.append(f"{archive.uri} {suite}: {error}")
                continue
            version = {package.name: package.version for package in packages}.get(PACKAGES[0], "")
            if settings.is_fitting(version):
                needed = (package for package in packages if not _NOT_NEEDED.match(package.name))
                return Selection(archive, suite, version, tuple(needed))
            failures.append(f"{archive.uri} {suite}: has {PACKAGES[0]} '{version}'")
    seen = "".join(f"\n  - {failure}" for failure in failures) or f" ({APT_CONFIGURATION} has none)"
    raise BootstrapError(
        f"no archive in apt's configuration offers a fitting Bazel{seen}",
        f"{PACKAGES[0]} ({settings.fits_text}) is expected in Debian's suite "
        f"{' or '.join(SUITES)}. Either the network is down, or Debian's own archive is not in "
        f"{APT_CONFIGURATION}, or it has moved on.",
        f"Check these three, or put a Bazel ({settings.fits_text}) on PATH.",
    )


def unpack(selection: Selection, apt: PrivateApt, prefix: Path, debs: Path, lock: int) -> None:
    """Download the packages and unpack them into the prefix.

    Args:
        selection: What to fetch, as `apt` has selected it.
        apt: Fetches it.
        prefix: An existing directory.
        debs: Directory for the downloads; created here, and empty afterwards.
        lock: Descriptor of the cache's lock.

    Raises:
        ProgramError: If a package cannot be fetched or unpacked.
    """
    debs.mkdir()
    total_mb = sum(package.size_bytes for package in selection.packages) / 1e6
    say(f"fetching {len(selection.packages)} packages ({total_mb:.0f} MB) of {selection.archive.uri} {selection.suite}")

    def measure_download() -> str:
        return f"{_size_bytes(debs) / 1e6:.0f} of {total_mb:.0f} MB"

    with progress("fetching packages:", measure_download):
        apt.download([package.name for package in selection.packages], debs)
    # The large ones first, so that no core is left with one of them at the end.
    files = sorted(debs.glob("*.deb"), key=lambda file: -file.stat().st_size)

    def unpack_one(file: Path) -> None:
        # `dpkg-deb --extract` would try to change owners, which root in a container may not.
        tar: list[str | Path] = ["tar", "--extract", "--no-same-owner", "--directory", prefix]
        run_pipe(["dpkg-deb", "--fsys-tarfile", file], tar, lock=lock)
        file.unlink()

    def measure_unpacking() -> str:
        return f"{len(files) - len(list(debs.iterdir()))} of {len(files)}"

    with ThreadPoolExecutor(os.cpu_count()) as pool, progress("unpacking:", measure_unpacking):
        list(pool.map(unpack_one, files))


def _size_bytes(directory: Path) -> int:
    total = 0
    for file in directory.iterdir():
        # Apt renames and removes files meanwhile.
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total
