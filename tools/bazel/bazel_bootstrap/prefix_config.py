"""Configures Bazel for the prefix: its bazelrc, its trust store, and modules that Debian lacks or has too old."""

from __future__ import annotations

import hashlib
import re
import shutil
import ssl
import struct
from pathlib import Path

from debian_prefix.console import say

# Modules that the rule packages depend on, although Bazel never loads them here.
_STUB_MODULES = ("apple_support", "buildozer", "protobuf", "zlib")

# The machine's bundle in Java's format; the package ca-certificates-java keeps it up to date.
MACHINE_STORE = Path("/etc/ssl/certs/java/cacerts")
# The machine's bundle that all other programs use.
MACHINE_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

# Java's usual password for stores without secrets. It only goes into the checksum.
_PASSWORD = "changeit"
_JKS_MAGIC, _JKS_VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2


def place_shims(shims: Path, prefix: Path) -> None:
    """Copy the stub modules, and Debian's rules_python with our files over it."""
    for name in _STUB_MODULES:
        shutil.copytree(shims / name, prefix / "shims" / name)
        # Beside the sources it has another name, because it would make a package of this workspace.
        build = prefix / "shims" / name / "BUILD.in"
        build.touch()
        build.rename(build.with_name("BUILD.bazel"))
    overlay = prefix / "shims/rules_python"
    shutil.copytree(prefix / "usr/share/bazel/rules/python", overlay)
    shutil.copytree(shims / "rules_python", overlay, dirs_exist_ok=True)
    _register_pythons(overlay / "MODULE.bazel")


def _register_pythons(module: Path) -> None:
    """Register the toolchains of `python.toolchain(...)`, before any that the module file registers itself.

    The module file is Debian's, because the rest of it belongs to files that are not ours.
    """
    before, register, after = module.read_text(encoding="utf-8").partition("\nregister_toolchains(")
    module.write_text(f'{before}\nregister_toolchains("@pythons_hub//:all")\n{register}{after}', encoding="utf-8")


def write_bazelrc(prefix: Path, java_home: Path) -> Path:
    """Write the options that make Bazel use the prefix, and return the file."""
    overrides = {name: prefix / "shims" / name for name in _STUB_MODULES}
    packaged = (prefix / "etc/bazel/bazelrc").read_text(encoding="utf-8")
    for name, path in re.findall(r"--override_module=(\w+)=(/\S+)", packaged):
        overrides[name] = Path(f"{prefix}{path}")
    overrides["rules_python"] = prefix / "shims/rules_python"
    options = [
        ("startup", f"--install_base={prefix}/usr/share/bazel"),
        ("startup", "--trust_install_base"),
        ("startup", f"--server_javabase={java_home}"),
        ("startup", f"--host_jvm_args=-Djavax.net.ssl.trustStore={_trust_store(prefix)}"),
        *(("common", f"--override_module={name}={path}") for name, path in overrides.items()),
        # Without it Bazel fetches rules_cc for an implicit WORKSPACE.
        ("common", "--noenable_workspace"),
    ]
    rc = prefix / "bazelrc"
    # Quoted, because the path may contain spaces.
    lines = (f'{command} "{option}"\n' for command, option in options)
    rc.write_text("".join(lines), encoding="utf-8")
    return rc


def _trust_store(prefix: Path) -> Path:
    if MACHINE_STORE.exists():
        return MACHINE_STORE
    own = prefix / "cacerts"
    if MACHINE_BUNDLE.exists():
        bundle = MACHINE_BUNDLE.read_text(encoding="utf-8", errors="replace")
    else:
        bundle = ""
        say(
            f"no certificates in {MACHINE_BUNDLE}: Bazel will not be able to download "
            "over https (remedy: install ca-certificates and remove the prefix)"
        )
    own.write_bytes(java_key_store(bundle))
    return own


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
