"""The key store that is written for Bazel's downloader."""

from __future__ import annotations

import hashlib
import ssl
import struct

from bazel_bootstrap.trust_store import java_key_store

CERTIFICATES = (b"first certificate", b"second")
PASSWORD = "changeit"


def test_the_store_holds_every_certificate_and_its_checksum_fits() -> None:
    """Otherwise Bazel could not download over https where Java's own store is missing.

    That a JVM reads it is shown by the test of the Debian prefix.
    """
    bundle = "# a comment\n".join(map(ssl.DER_cert_to_PEM_cert, CERTIFICATES))
    store = java_key_store(bundle)
    body, checksum = store[:-20], store[-20:]
    sealed = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    assert checksum == hashlib.sha1(sealed).digest()
    assert body[:12] == struct.pack(">III", 0xFEEDFEED, 2, len(CERTIFICATES))
    for certificate in CERTIFICATES:
        assert struct.pack(">I", len(certificate)) + certificate in body


def test_an_empty_bundle_makes_an_empty_store() -> None:
    """Otherwise a machine without certificates would see a traceback."""
    assert struct.unpack(">III", java_key_store("")[:12])[2] == 0
