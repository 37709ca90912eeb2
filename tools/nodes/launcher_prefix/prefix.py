"""Makes a private copy of Debian's packages of Slurm, Open MPI and MPICH in the user cache.

Their programs have fixed paths below /usr, so a test lays the copy over the machine's /usr and /etc in a mount
namespace of its own. The packages are therefore those of the machine's own Debian suite, without what is installed.
"""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from dataclasses import replace
from pathlib import Path

from debian_prefix.apt import PrivateApt
from debian_prefix.cache import FINISHED, user_cache
from debian_prefix.errors import InstallError
from debian_prefix.packages import NotOfferedError, Selection, copy_packages, select_packages

_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "openmpi-bin", "mpich")
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
# More than the packages need, with the downloads. Bytes.
_NEEDED_BYTES = 300 * 10**6


def existing_copy() -> Path | None:
    """Return the copy, if it has been made; else None."""
    try:
        prefix = _prefix()
    except InstallError:
        return None
    return prefix if (prefix / FINISHED).exists() else None


def make_copy() -> Path:
    """Return the copy. Make it, if there is none.

    Raises:
        InstallError: If it cannot be made.
    """
    prefix = _prefix()
    copy_packages(
        prefix,
        "the launchers",
        needed_bytes=_NEEDED_BYTES,
        select=_select,
        adapt=_link,
        other_way="Use a machine with Debian and a mirror; elsewhere the tests of these launchers are skipped.",
    )
    return prefix


def _prefix() -> Path:
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    return user_cache("nodes") / f"launchers-{platform.machine()}-{_suite()}-{recipe}"


def _suite() -> str:
    """Return the code name of the machine's Debian, such as "bookworm"; "none" on another system."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "none"
    return release.get("VERSION_CODENAME", "none") if release.get("ID") == "debian" else "none"


def _link(prefix: Path, _lock: int) -> None:
    for name, target in _LINKS.items():
        if not (prefix / name).exists():
            (prefix / name).symlink_to(target)


def _select(apt: PrivateApt) -> Selection:
    try:
        found = select_packages(apt, _PACKAGES, not_needed=_NOT_NEEDED, suites=[_suite()])
    except NotOfferedError as error:
        raise InstallError(
            f"no archive in apt's configuration offers {' and '.join(_PACKAGES)} for '{_suite()}'{error}",
            "They are expected in Debian's own archive, and on Debian only.",
            "Without the copy the tests of these launchers are skipped.",
        ) from error
    installed = _installed()
    return replace(found, packages=tuple(package for package in found.packages if package.name not in installed))


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
