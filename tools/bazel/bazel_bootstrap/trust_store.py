"""Makes the key store of the certificates that Bazel's downloader trusts."""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path

# The machine's bundle in Java's format; the package ca-certificates-java keeps it up to date.
MACHINE_STORE = Path("/etc/ssl/certs/java/cacerts")
# The machine's bundle that all other programs use.
MACHINE_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

# Java's usual password for stores without secrets. It only goes into the checksum.
_PASSWORD = "changeit"
_JKS_MAGIC, _JKS_VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2


def java_key_store(bundle: str) -> bytes:
    """Return the certificates of a PEM bundle as a Java key store (format JKS); other text in the bundle is ignored.

    Written here, because `keytool` takes one certificate per call and half a second for each.
    """
    begin, end = ssl.PEM_HEADER, ssl.PEM_FOOTER
    certificates = [
        ssl.PEM_cert_to_DER_cert(f"{begin}{part.partition(end)[0]}{end}\n") for part in bundle.split(begin)[1:]
    ]
    body = struct.pack(">III", _JKS_MAGIC, _JKS_VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca-{number}")
        # Java's creation date of the entry; nothing reads it.
        body += struct.pack(">Q", 0) + _text("X.509")
        body += struct.pack(">I", len(certificate)) + certificate
    seal = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(seal, usedforsecurity=False).digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded
