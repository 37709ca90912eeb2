"""Finds the outputs of tests on this machine, where Bazel has put them or in its cache."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

# Length of a digest in hexadecimal -> the function that Bazel means if it gives no name.
_FUNCTIONS = {32: "md5", 40: "sha1", 64: "sha256", 96: "sha384", 128: "sha512"}
# The end of the address of an output on a remote executor: digest and size. BLAKE3 has its name before the digest;
# Bazel leaves out the names of the functions that the length tells.
_REMOTE = re.compile(r"(?:^|/)blobs/(?:(?P<function>[a-z0-9]+)/)?(?P<digest>[0-9a-f]{32,128})/(?P<size>\d+)$")


@dataclass(frozen=True, slots=True)
class Output:
    """A file that a test action has left."""

    name: str  # Bazel's name of it, such as "test.log" or "test.outputs__outputs.zip"
    path: Path | None  # the file; None if it is not on this machine
    uri: str = ""  # its address in the build events: "file:///..." or "bytestream://..."


class OutputFinder:
    """Finds the outputs of tests on this machine."""

    def __init__(self, disk_cache: Path | None) -> None:
        self._exec_root: Path | None = None
        self._disk_cache = disk_cache
        # Configuration -> the folder of its outputs.
        self._folders: dict[str, str] = {}
        # Folder of a target -> its files with their sizes.
        self._listed: dict[Path, list[tuple[Path, int]]] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Learn from an event where the outputs are."""
        if root := event.get("workspaceInfo", {}).get("localExecRoot"):
            self._exec_root = Path(str(root))
        if "configuration" in event and "configuration" in event["id"]:
            self._folders[event["id"]["configuration"]["id"]] = event["configuration"].get("mnemonic", "")

    def find(self, identity: Mapping[str, Any], uri: str) -> Path | None:
        """Return the file of an address; None if it is not on this machine."""
        try:
            if uri.startswith("file:"):
                path = Path(unquote(urlsplit(uri).path))
                return path if path.exists() else None
            remote = _REMOTE.search(urlsplit(uri).path)
            return None if remote is None else self._find_remote(identity, remote)
        except (OSError, ValueError):
            # Not a path that this machine can have: too long, or with a null character.
            return None

    def _find_remote(self, identity: Mapping[str, Any], remote: re.Match[str]) -> Path | None:
        digest, size = remote["digest"], int(remote["size"])
        function = remote["function"] or _FUNCTIONS.get(len(digest), "")
        places = self._places(identity, size)
        if self._disk_cache is not None:
            root = self._disk_cache if function == "sha256" else self._disk_cache / function
            places.append(root / "cas" / digest[:2] / digest)
        for path in places:
            if path.is_file() and path.stat().st_size == size and _digest_of(path, function) in (digest, None):
                return path
        return None

    def _places(self, identity: Mapping[str, Any], size: int) -> list[Path]:
        """Return the files of the target with this size.

        The address names the copy on the executor, although Bazel may have fetched the file. A file here may also be
        from an earlier run; the digest tells.
        """
        mnemonic = self._folders.get(identity.get("configuration", {}).get("id", ""))
        if self._exec_root is None or not mnemonic:
            return []
        repository, _, rest = str(identity["label"]).rpartition("//")
        place = self._exec_root / "bazel-out" / mnemonic / "testlogs"
        if name := repository.lstrip("@"):
            place = place / "external" / name
        package, _, target = rest.partition(":")
        folder = place / package / target
        if folder not in self._listed:
            self._listed[folder] = [(path, path.stat().st_size) for path in folder.rglob("*") if path.is_file()]
        return [path for path, length in self._listed[folder] if length == size]


def _digest_of(path: Path, function: str) -> str | None:
    """Return the digest of a file in hexadecimal; None if Python lacks the function, as it lacks BLAKE3."""
    if function not in _FUNCTIONS.values():
        return None
    with path.open("rb") as file:
        # MD5 and SHA-1 only find files here.
        return hashlib.file_digest(file, lambda: hashlib.new(function, usedforsecurity=False)).hexdigest()
