"""Computes the digests that name files in remote caches."""

from __future__ import annotations

import hashlib
from pathlib import Path

# Length of a digest in hexadecimal -> the function that Bazel means if it gives no name.
FUNCTIONS = {32: "md5", 40: "sha1", 64: "sha256", 96: "sha384", 128: "sha512"}
_PART_BYTES = 1 << 20


def digest_of(path: Path, function: str) -> str | None:
    """Return the digest of a file in hexadecimal; None if Python lacks the function, as it lacks BLAKE3."""
    if function not in FUNCTIONS.values():
        return None
    # MD5 and SHA-1 only find files here.
    found = hashlib.new(function, usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(_PART_BYTES):
            found.update(data)
    return found.hexdigest()
