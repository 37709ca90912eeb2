"""Finds packages with their dependencies in Debian's archives, and unpacks them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from debian_prefix.apt import Package, PrivateApt
from debian_prefix.apt_sources import Archive, archives
from debian_prefix.cache import PARTIAL, make_once
from debian_prefix.console import progress, say
from debian_prefix.errors import InstallError
from debian_prefix.programs import ProgramError, run_program

APT_CONFIGURATION = Path("/etc/apt")
# Suites that carry the packages, the preferred one first.
SUITES = ("forky", "sid")


class NotOfferedError(Exception):
    """No archive offers the package. The text, for the end of a sentence, lists the archives' answers."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The packages to unpack, and where they come from."""

    archive: Archive  # the archive, one of apt's own
    suite: str  # Debian's suite, such as "forky"
    version: str  # version of the main package there
    packages: tuple[Package, ...]  # what to download


def missing_tools() -> list[str]:
    """Return the programs that are needed to make a private copy and are not on PATH."""
    return [name for name in ("apt-get", "dpkg-deb", "tar") if shutil.which(name) is None]


def select_packages(
    apt: PrivateApt,
    names: Sequence[str],
    *,
    not_needed: re.Pattern[str],
    suites: Sequence[str] = SUITES,
    is_fitting: Callable[[str], bool] = lambda _: True,
) -> Selection:
    """Return the first archive and suite with a fitting version. Downloads indexes only.

    Args:
        apt: Selects the archive and the suite.
        names: The packages to install, the main one first.
        not_needed: Matches the names of dependencies to leave out.
        suites: Debian's suites to ask, the preferred one first.
        is_fitting: Whether a version of the main package can be used; default: every version.

    Raises:
        NotOfferedError: If there is none; it names the answer of every archive.
    """
    failures = []
    for archive in archives(APT_CONFIGURATION):
        for suite in suites:
            try:
                with progress(f"reading the package index of '{suite}'"):
                    apt.select(archive, suite)
                    packages = apt.closure(*names)
            except ProgramError as error:
                failures.append(f"{archive.uri} {suite}: {error}")
                continue
            version = {package.name: package.version for package in packages}.get(names[0], "")
            if is_fitting(version):
                needed = (package for package in packages if not not_needed.match(package.name))
                return Selection(archive, suite, version, tuple(needed))
            failures.append(f"{archive.uri} {suite}: has {names[0]} '{version}'")
    raise NotOfferedError("".join(f"\n  - {failure}" for failure in failures) or f" ({APT_CONFIGURATION} has none)")


def unpack(selection: Selection, apt: PrivateApt, prefix: Path, debs: Path, lock: int) -> None:
    """Download the packages and unpack them into the prefix.

    Args:
        selection: What to fetch: the result of `select_packages` with the same `apt`.
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
    # The large ones first, so that the last one to finish is a small one.
    files = sorted(debs.glob("*.deb"), key=lambda file: -file.stat().st_size)

    def unpack_one(file: Path) -> None:
        # `dpkg-deb --extract` would try to change owners, which root in a container may not do.
        pipe = 'dpkg-deb --fsys-tarfile "$0" | tar --extract --no-same-owner --directory "$1"'
        run_program(["bash", "-o", "pipefail", "-c", pipe, file, prefix], lock=lock)
        file.unlink()

    def measure_unpacking() -> str:
        return f"{len(files) - len(list(debs.iterdir()))} of {len(files)}"

    with ThreadPoolExecutor(os.cpu_count()) as pool, progress("unpacking:", measure_unpacking):
        list(pool.map(unpack_one, files))


def copy_packages(
    prefix: Path,
    title: str,
    *,
    needed_bytes: int,
    select: Callable[[PrivateApt], Selection],
    adapt: Callable[[Path, int], None],
    other_way: str,
) -> None:
    """Make a private copy of packages, unless there is one.

    Args:
        prefix: Its folder, directly below a cache.
        title: Its name for the user.
        needed_bytes: More space than it needs, with the downloads.
        select: Chooses the packages.
        adapt: Adapts the unpacked packages to the prefix; called with it and with the descriptor of the cache's lock.
        other_way: What the user can do if it cannot be made.

    Raises:
        InstallError: If it cannot be made.
    """

    def make(prefix: Path, lock: int) -> None:
        if missing := missing_tools():
            raise InstallError(
                f"a private copy of {title} cannot be made: {', '.join(missing)} not found on PATH.",
                "Where it is not installed, these programs make a copy of Debian's packages.",
                other_way,
            )
        say(f"making a private copy of {title} in {prefix} (once; half a minute)")
        work = prefix / f"work{PARTIAL}"
        (work / "apt").mkdir(parents=True)
        try:
            apt = PrivateApt(work / "apt", lock)
            unpack(select(apt), apt, prefix, work / "debs", lock)
            adapt(prefix, lock)
        except ProgramError as error:
            raise InstallError(
                f"making a private copy of {title} failed: {error}",
                "The mirror may be unreachable, or Debian's packages have new versions.",
                other_way,
            ) from error
        shutil.rmtree(work)

    make_once(prefix, needed_bytes, make)


def _size_bytes(directory: Path) -> int:
    total = 0
    for file in directory.iterdir():
        # Apt renames and removes files at the same time.
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total
