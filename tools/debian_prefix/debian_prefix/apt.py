"""A private apt: its own state, lists and downloads, and the machine's archives and proxies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from debian_prefix.apt_sources import Archive
from debian_prefix.programs import run_program

# Limit for a connection to an archive: an unreachable archive must fail soon. Seconds.
CONNECT_LIMIT_S = 10

# apt-get reads this after the machine's configuration. The machine's hooks are cleared, because they work on the
# machine's package cache (containers often delete it after each update). Root's apt would change to another user, and
# that user cannot enter root's home, so it stays root.
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{root}/sources.d";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{root}/state";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "{limit_s}";
Acquire::https::Timeout "{limit_s}";
"""

# A line of `apt-get install --print-uris`: 'URI' file size checksum.
_URI_LINE = re.compile(r"'[^']+' (?P<name>[^_ ]+)_(?P<version>[^_ ]+)_\S+ (?P<size>\d+)")


@dataclass(frozen=True, slots=True)
class Package:
    """One package that apt would install."""

    name: str  # its name
    version: str  # its full Debian version
    size_bytes: int  # size of the download


class PrivateApt:
    """An apt that sees one suite of one archive, assumes that nothing is installed, and needs no root.

    Args:
        root: Directory for all it writes; created by the caller, and empty.
        lock: Descriptor of the cache's lock; None if apt works outside the cache.
    """

    def __init__(self, root: Path, lock: int | None) -> None:
        self._root = root
        self._lock = lock
        self._configuration = root / "apt.conf"

    def select(self, archive: Archive, suite: str) -> None:
        """Fetch the index of a suite.

        Raises:
            ProgramError: If the archive is unreachable, lacks the suite, or is not trusted.
        """
        for folder in ("sources.d", "state/lists/partial", "cache/archives/partial"):
            (self._root / folder).mkdir(parents=True, exist_ok=True)
        (self._root / "status").touch()
        (self._root / "sources.d" / "only.sources").write_text(archive.stanza(suite))
        configuration = _CONFIGURATION.format(root=self._root, limit_s=CONNECT_LIMIT_S)
        self._configuration.write_text(configuration)
        self._apt_get("update")

    def closure(self, *names: str) -> list[Package]:
        """Return the packages that apt would install for `names` on an empty machine.

        Raises:
            ProgramError: If one of them does not exist or cannot be installed.
        """
        output = self._apt_get("install", "--yes", "--print-uris", *names)
        return [
            Package(match["name"], unquote(match["version"]), int(match["size"]))
            for match in map(_URI_LINE.match, output.splitlines())
            if match
        ]

    def download(self, names: list[str], directory: Path) -> None:
        """Fetch the packages' files; apt verifies their checksums.

        Raises:
            ProgramError: If a file could not be fetched whole.
        """
        self._apt_get("download", *names, cwd=directory)

    def _apt_get(self, *arguments: str, cwd: Path | None = None) -> str:
        command = ("apt-get", f"--config-file={self._configuration}", "--quiet=2", *arguments)
        return run_program(command, lock=self._lock, cwd=cwd)
