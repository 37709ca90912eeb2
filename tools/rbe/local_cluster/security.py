"""How clients reach the server: by TLS, with certificates of their own, under an instance name."""

from __future__ import annotations

import datetime
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from local_cluster.errors import ClusterError

HOST = "127.0.0.1"

# Longer than a cluster for experiments lives.
_VALID = datetime.timedelta(days=90)
# Of what the protocol allows: no word that it uses in paths, and nothing that a shell or an .rc file would change.
_INSTANCE = re.compile(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*")
_RESERVED = frozenset(
    ["blobs", "uploads", "actions", "actionResults", "operations", "capabilities", "compressed-blobs"]
)


@dataclass(frozen=True, slots=True)
class Access:
    """What a client must know and show.

    Attributes:
        tls: Whether the server speaks TLS.
        asks_clients: Whether every client and worker must show a certificate; only with `tls`.
        instance: The instance name; "" for the nameless one.
    """

    tls: bool = False
    asks_clients: bool = False
    instance: str = ""

    def url(self, port: int) -> str:
        """Return the server's address for BuildBox."""
        return f"http{'s' if self.tls else ''}://{HOST}:{port}"

    def endpoint(self, port: int) -> str:
        """Return the server's address for Bazel."""
        return f"grpc{'s' if self.tls else ''}://{HOST}:{port}"


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of the cluster's own authority.

    Attributes:
        folder: Their folder.
    """

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate that signs the others."""
        return self.folder / "authority.pem"

    def certificate(self, name: str) -> Path:
        """Return the certificate of the "server" or of a "client"."""
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        """Return the private key to that certificate."""
        return self.folder / f"{name}.key"


def parse_instance(text: str) -> str:
    """Check an instance name.

    Raises:
        ClusterError: If it is none.
    """
    if text and (not _INSTANCE.fullmatch(text) or _RESERVED & set(text.split("/"))):
        raise ClusterError(
            f"--instance '{text}' cannot be an instance name.",
            "It is letters, digits, '-' and '_', in parts between slashes, and no part is a word of the protocol "
            f"({', '.join(sorted(_RESERVED))}).",
            "For example: --instance=team/main",
        )
    return text


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, and certificates of the server and of one client.

    Args:
        folder: A folder that exists; only this user may read what is in it.
    """
    made = Certificates(folder)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _name("dist_testing rbe authority")
    signed = _builder(authority, authority, authority_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    _write(made.authority, signed.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    for name, usage in (("server", ExtendedKeyUsageOID.SERVER_AUTH), ("client", ExtendedKeyUsageOID.CLIENT_AUTH)):
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
        builder = (
            _builder(_name(f"dist_testing rbe {name}"), authority, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        )
        certificate = builder.sign(authority_key, hashes.SHA256())
        _write(made.certificate(name), certificate.public_bytes(serialization.Encoding.PEM))
        # PKCS 8 is the form that Bazel reads.
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _write(made.key(name), key.private_bytes(*form))
    return made


def bazel_flags(access: Access, port: int, certificates: Certificates | None) -> list[str]:
    """Return the flags by which Bazel reaches the server."""
    flags = [f"--remote_executor={access.endpoint(port)}"]
    if access.instance:
        flags.append(f"--remote_instance_name={access.instance}")
    if certificates is not None:
        flags.append(f"--tls_certificate={certificates.authority}")
        if access.asks_clients:
            flags.append(f"--tls_client_certificate={certificates.certificate('client')}")
            flags.append(f"--tls_client_key={certificates.key('client')}")
    return flags


def buildbox_options(prefix: str, access: Access, certificates: Certificates | None) -> list[str]:
    """Return the options by which a program of BuildBox reaches a service of the server.

    Args:
        prefix: The service in the names of options: "cas" or "bots".
        access: What a client must show.
        certificates: The cluster's files; None without TLS.
    """
    if certificates is None:
        return []
    options = [f"--{prefix}-server-cert={certificates.authority}"]
    if access.asks_clients:
        options.append(f"--{prefix}-client-key={certificates.key('client')}")
        options.append(f"--{prefix}-client-cert={certificates.certificate('client')}")
    return options


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # The clocks of containers differ by seconds.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _VALID)
    )


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
