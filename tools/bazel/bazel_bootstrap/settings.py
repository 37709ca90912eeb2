"""The settings that `bazelw` passes to the bootstrap."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from debian_prefix.errors import InstallError

# Base address of the releases; empty: do not ask the server. Documented in README.md.
RELEASE_URL_VARIABLE = "BAZELW_RELEASE_URL"
_RELEASE_URL = "https://github.com/bazelbuild/bazel/releases/download"

# (system, CPU) as `uname` prints them -> the ending of the release's file name.
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
    """The settings of one start of the bootstrap."""

    version: str  # the pinned Bazel release, such as "7.7.1"
    fits: str  # regular expression that the version of any Bazel must match
    fits_text: str  # the same for people
    system: str  # output of `uname -s`
    cpu: str  # output of `uname -m`
    release: Path  # path of a released Bazel in the cache
    debian: Path  # path of the launcher of the Debian prefix in the cache
    tools: Path  # the directory of bootstrap.py

    @property
    def cache(self) -> Path:
        """The cache directory; the bootstrap writes nowhere else."""
        return self.release.parent.parent

    @property
    def release_url(self) -> str:
        """Base address of the release server, without a slash at its end; may be empty."""
        url = os.environ.get(RELEASE_URL_VARIABLE, _RELEASE_URL).rstrip("/")
        if url and not re.match(r"https?://[^/]", url):
            raise InstallError(
                f"{RELEASE_URL_VARIABLE} is '{url}'.",
                "An address that starts with http:// or https:// is expected there.",
                "Correct it, unset it, or set it to nothing to use Debian's Bazel.",
            )
        return url

    @property
    def release_file(self) -> str:
        """The file name of the release for this machine."""
        platform = _RELEASE_PLATFORMS.get((self.system, self.cpu))
        if platform is not None:
            return f"bazel-{self.version}-{platform}"
        raise InstallError(
            f"there is no prebuilt Bazel for '{self.system}' on '{self.cpu}'.",
            "Linux and macOS on x86_64 and 64-bit Arm are supported. Windows is supported only "
            "through its Linux subsystem.",
            f"Put a Bazel ({self.fits_text}) on PATH.",
        )

    def is_fitting(self, version: str) -> bool:
        """Return whether a Bazel of this version can build the workspace."""
        return re.match(self.fits, version) is not None
