"""Makes a private copy of Debian's packages of Slurm, Open MPI and MPICH in the user cache.

Their programs have fixed paths below /usr, so a test lays the copy over the machine's /usr and /etc in a mount
namespace of its own. The packages are therefore those of the machine's own Debian suite, without what is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from debian_prefix.apt import PrivateApt
from debian_prefix.apt_sources import archives
from debian_prefix.cache import PARTIAL, locked, require_free_space
from debian_prefix.console import say
from debian_prefix.errors import InstallError, explained_os_errors
from debian_prefix.packages import APT_CONFIGURATION, Selection, missing_tools, unpack
from debian_prefix.programs import ProgramError

_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "openmpi-bin", "mpich")
# The main package, whose presence in an archive decides.
_MAIN = _PACKAGES[0]
# Parts of a Debian system that the programs do not use, and packages that only set one up.
_NOT_NEEDED = re.compile(
    r"adduser|base-|bash|coreutils|dash|debconf|debianutils|diffutils|dpkg|findutils|grep|gzip|hostname|init|libc6$|"
    r"libc-bin|libcrypt1$|libgcc-s1$|login|lsb-base|mount$|munge$|passwd|perl|procps|sed$|sysvinit|systemd|tar$|ucf$|"
    r"util-linux|gcc-|openssh|tzdata|mailcap|mime-|libpam|python3"
)
# Debian chooses these names by `update-alternatives`, which a copy does not run. Slurm's daemon starts its step daemon
# by a fixed path.
_LINKS = {
    "usr/sbin/slurmd": "slurmd-wlm",
    "usr/sbin/slurmctld": "slurmctld-wlm",
    "usr/sbin/slurmstepd": "slurmstepd-wlm",
}
_FINISHED = "finished"
# More than the packages need, with the downloads. Bytes.
_NEEDED_BYTES = 300 * 10**6


def cache_root() -> Path:
    """Return the directory in the user cache.

    Raises:
        InstallError: If no variable names the user cache.
    """
    for variable, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        if os.environ.get(variable, "").startswith("/"):
            return Path(os.environ[variable], below, "dist_testing/nodes")
    raise InstallError(
        "neither HOME nor XDG_CACHE_HOME is an absolute path.",
        "The copy of the launchers is kept in the user cache.",
        "Set HOME.",
    )


def existing_copy() -> Path | None:
    """Return the copy, if it has been made; else None."""
    try:
        prefix = _prefix(cache_root())
    except InstallError:
        return None
    return prefix if (prefix / _FINISHED).exists() else None


def make_copy() -> Path:
    """Return the copy. Make it, if there is none.

    Raises:
        InstallError: If it cannot be made.
    """
    cache = cache_root()
    prefix = _prefix(cache)
    if not (prefix / _FINISHED).exists():
        if missing := missing_tools():
            raise InstallError(
                f"{', '.join(missing)} not found on PATH.",
                "The copy is made of Debian's packages, with these programs.",
                "Use a machine with Debian; elsewhere the tests of these launchers are skipped.",
            )
        with locked(cache) as lock, explained_os_errors(cache):
            if not (prefix / _FINISHED).exists():
                _build(prefix, lock)
    return prefix


def _prefix(cache: Path) -> Path:
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    return cache / f"launchers-{platform.machine()}-{_suite()}-{recipe}"


def _suite() -> str:
    """Return the code name of the machine's Debian, such as "bookworm"; "none" on another system."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "none"
    return release.get("VERSION_CODENAME", "none") if release.get("ID") == "debian" else "none"


def _build(prefix: Path, lock: int) -> None:
    shutil.rmtree(prefix, ignore_errors=True)
    require_free_space(prefix.parent, _NEEDED_BYTES)
    say(f"making a private copy of the launchers in {prefix} (once; half a minute)")
    work = prefix / f"work{PARTIAL}"
    try:
        (work / "apt").mkdir(parents=True)
        apt = PrivateApt(work / "apt", lock)
        unpack(_select(apt), apt, prefix, work / "debs", lock)
        for name, target in _LINKS.items():
            if not (prefix / name).exists():
                (prefix / name).symlink_to(target)
        shutil.rmtree(work)
        (prefix / _FINISHED).touch()
    except ProgramError as error:
        raise InstallError(
            f"making a private copy of the launchers failed: {error}",
            "The mirror may be unreachable, or Debian's packages have new versions.",
            "Try again; without the copy the tests of these launchers are skipped.",
        ) from error
    finally:
        if not (prefix / _FINISHED).exists():
            shutil.rmtree(prefix, ignore_errors=True)


def _select(apt: PrivateApt) -> Selection:
    suite = _suite()
    failures = []
    for archive in archives(APT_CONFIGURATION):
        try:
            apt.select(archive, suite)
            packages = apt.closure(*_PACKAGES)
        except ProgramError as error:
            failures.append(f"\n  - {archive.uri} {suite}: {error}")
            continue
        installed = _installed()
        needed = [
            package for package in packages if package.name not in installed and not _NOT_NEEDED.match(package.name)
        ]
        version = next(package.version for package in packages if package.name == _MAIN)
        return Selection(archive, suite, version, tuple(needed))
    raise InstallError(
        f"no archive in apt's configuration offers {' and '.join(_PACKAGES)} for '{suite}'{''.join(failures)}",
        "They are expected in Debian's own archive, and on Debian only.",
        "Without the copy the tests of these launchers are skipped.",
    )


def _installed() -> frozenset[str]:
    """Return the packages that the machine has."""
    listing = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\\n"],
        capture_output=True,
        text=True,
        check=False,
    )
    states = (line.split() for line in listing.stdout.splitlines())
    return frozenset(words[1] for words in states if len(words) == 2 and words[0] == "installed")
