"""Selects the Debian packages that Bazel needs to run."""

from __future__ import annotations

import re

from debian_prefix import packages
from debian_prefix.apt import PrivateApt
from debian_prefix.errors import InstallError
from debian_prefix.packages import APT_CONFIGURATION, SUITES, NotOfferedError, Selection

from bazel_bootstrap.settings import Settings

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
