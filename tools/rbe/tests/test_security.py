"""A cluster that speaks TLS, asks clients for certificates, and has an instance name."""

from __future__ import annotations

import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health as health_service
from grpc_health.v1 import health_pb2, health_pb2_grpc
from local_cluster import health, parts
from local_cluster.errors import ClusterError
from local_cluster.places import ClusterFiles, Scratch
from local_cluster.plan import Plan
from local_cluster.pools import parse_pool
from local_cluster.security import Access, bazel_flags, make_certificates, parse_instance
from local_cluster.server_config import write_server_files


def _plan(access: Access) -> Plan:
    return Plan("local", 4, tuple(parse_pool("cpu=1").members()), Path("/nonexistent"), Path("/nonexistent"), access)


def test_server_and_client_trust_each_other(tmp_path: Path) -> None:
    """Otherwise the cluster never gets ready, or takes anybody for a client."""
    made = make_certificates(tmp_path)
    key, certificate = made.key("server").read_bytes(), made.certificate("server").read_bytes()
    authority = made.authority.read_bytes()
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    servicer = health_service.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    with ThreadPoolExecutor() as threads:
        server = grpc.server(threads)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        try:
            assert health.is_server_ready(port, made)
            # Without TLS.
            assert not health.is_server_ready(port)
            # A client of another authority.
            (tmp_path / "other").mkdir()
            other = make_certificates(tmp_path / "other")
            other.authority.write_bytes(authority)
            assert not health.is_server_ready(port, other)
        finally:
            server.stop(None).wait()


def test_private_keys_are_private(tmp_path: Path) -> None:
    """Otherwise every user of the machine can be this user's client."""
    made = make_certificates(tmp_path)
    for name in ("server", "client"):
        assert 0o600 == stat.S_IMODE(made.key(name).stat().st_mode)
        assert b"BEGIN PRIVATE KEY" in made.key(name).read_bytes()
        # OpenSSL takes the pair.
        ssl.create_default_context().load_cert_chain(made.certificate(name), made.key(name))


def test_flags_for_bazel(tmp_path: Path) -> None:
    """Otherwise users look for the paths of four certificates."""
    made = make_certificates(tmp_path)
    assert ["--remote_executor=grpc://127.0.0.1:4"] == bazel_flags(Access(), 4, None)
    assert [
        "--remote_executor=grpcs://127.0.0.1:4",
        "--remote_instance_name=team/main",
        f"--tls_certificate={tmp_path}/authority.pem",
        f"--tls_client_certificate={tmp_path}/client.pem",
        f"--tls_client_key={tmp_path}/client.key",
    ] == bazel_flags(Access(tls=True, asks_clients=True, instance="team/main"), 4, made)


def test_parts_use_the_certificates(tmp_path: Path) -> None:
    """Otherwise workers speak another language than the server, or with another instance."""
    files = ClusterFiles(tmp_path)
    plan = _plan(Access(tls=True, asks_clients=True, instance="main"))
    write_server_files(plan, files, "postgresql+psycopg2://x@/y?host=/z")
    config = files.server_config.read_text(encoding="utf-8")
    assert "insecure-mode: false" in config
    assert f'tls-client-certs: "{tmp_path}/certificates/authority.pem"' in config
    assert '- name: "main"' in config
    assert "build:rbe_local --remote_instance_name=main\n" in files.bazel_flags.read_text(encoding="utf-8")
    scratch = Scratch(tmp_path)
    storage = parts.storage_part(plan.workers[0], plan, files, scratch).command
    worker = parts.worker_part(plan.workers[0], plan, files, scratch).command
    assert {"--cas-remote=https://127.0.0.1:4", "--cas-instance=main", "--proxy-instance=main"} <= set(storage)
    assert {"--bots-remote=https://127.0.0.1:4", "--instance=main"} <= set(worker)
    for prefix, command in (("cas", storage), ("bots", worker)):
        assert f"--{prefix}-client-key={tmp_path}/certificates/client.key" in command


def test_open_cluster_has_no_certificates(tmp_path: Path) -> None:
    """Otherwise the short command of the page needs flags, too."""
    files = ClusterFiles(tmp_path)
    write_server_files(_plan(Access()), files, "x")
    config = files.server_config.read_text(encoding="utf-8")
    assert "insecure-mode: true" in config
    assert '- name: ""' in config
    assert not files.certificates.exists()


@pytest.mark.parametrize("text", ["a b", "a//b", "/a", "team/blobs", "a=b", "x\ny"])
def test_bad_instance(text: str) -> None:
    """Otherwise the name is taken for a part of a path of the protocol, and calls fail without a reason."""
    with pytest.raises(ClusterError, match="cannot be an instance name"):
        parse_instance(text)
