"""What `bazelw` tells the bootstrap."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bazel_bootstrap.errors import BootstrapError

# Base address of the releases; empty means "never ask it". Documented in README.md.
RELEASE_URL_VARIABLE = "BAZELW_RELEASE_URL"
_RELEASE_URL = "https://github.com/bazelbuild/bazel/releases/download"

# (system, CPU) as `uname` calls them, to the ending of the release's file name.
_RELEASE_PLATFORMS: Mapping[tuple[str, str], str] = types.MappingProxyType(
    {
        ("Linux", "x86_64"): "linux-x86_64",
        ("Linux", "aarch64"): "linux-arm64",
        ("Darwin", "x86_64"): "darwin-x86_64",
        ("Darwin", "arm64"): "darwin-arm64",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """One start of the bootstrap.

    Attributes:
        version: The pinned Bazel release, such as "7.7.1".
        fits: Regular expression that the version of any Bazel must match.
        fits_text: The same for people.
        system: What `uname -s` says.
        cpu: What `uname -m` says.
        release: Where a released Bazel belongs in the cache.
        debian: Where the launcher of the Debian prefix belongs in the cache.
        tools: The directory of bootstrap.py.
    """

    version: str
    fits: str
    fits_text: str
    system: str
    cpu: str
    release: Path
    debian: Path
    tools: Path

    @property
    def cache(self) -> Path:
        """The directory that is filled; everything written lies below it."""
        return self.release.parent.parent

    @property
    def release_url(self) -> str:
        """Base address of the release server, without a slash at its end; may be empty.

        Raises:
            BootstrapError: If the user's setting is no address.
        """
        url = os.environ.get(RELEASE_URL_VARIABLE, _RELEASE_URL).rstrip("/")
        if url and not re.match(r"https?://[^/]", url):
            raise BootstrapError(
                f"{RELEASE_URL_VARIABLE} is '{url}'.",
                "An address that starts with http:// or https:// is expected there.",
                "Correct it, unset it, or set it to nothing to use Debian's Bazel.",
            )
        return url

    @property
    def release_file(self) -> str:
        """The release's file name for this machine.

        Raises:
            BootstrapError: If the machine is of another kind than is supported.
        """
        platform = _RELEASE_PLATFORMS.get((self.system, self.cpu))
        if platform is not None:
            return f"bazel-{self.version}-{platform}"
        raise BootstrapError(
            f"there is no prebuilt Bazel for '{self.system}' on '{self.cpu}'.",
            "Supported are Linux and macOS on x86_64 and 64-bit Arm. Windows is not, except "
            "through its Linux subsystem.",
            f"Put a Bazel ({self.fits_text}) on PATH.",
        )

    def is_fitting(self, version: str) -> bool:
        """Say whether a Bazel of this version can build the workspace."""
        return re.match(self.fits, version) is not None
