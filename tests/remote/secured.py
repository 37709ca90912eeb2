"""The check of a cluster as operators run it: TLS, client certificates, and an instance name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tests.remote.cluster import Client, expect, running_cluster
from tests.remote.tunnel import tunnel

INSTANCE = "team/main"
# It examines a worker, needs nothing but Python there, and never comes from a cache.
TARGET = "//tools/rbe/pool_check:pool_check"
REMOTE_ERROR = 34

# What a Bazel says that was built without a library for TLS over HTTP/2.
_SPEAKS_NO_TLS = "does not support ALPN"


def check_secured(client: Client, rbe: Path) -> str:
    """A client with a certificate and the instance name runs tests; no other client does.

    Args:
        client: A client in a workspace.
        rbe: The program of `//tools/rbe`.

    Returns:
        How Bazel reached the server, in words.

    Raises:
        ComplaintError: If it is not so.
    """
    options = ("--client-certificates", f"--instance={INSTANCE}")
    with running_cluster(rbe, ("cpu=1",), *options, suffix="secured") as cluster:
        told = Path(json.loads(cluster.call("status", "--json"))["flags"]).read_text(encoding="utf-8")
        flags = dict(re.findall(r"^build:rbe_local --(\S+?)=(.*)$", told, re.MULTILINE))
        expect("the flag of the instance", INSTANCE, flags.get("remote_instance_name"), told)
        direct = client.test(*_options(flags), "--remote_retries=0", TARGET)
        has_tls = _SPEAKS_NO_TLS not in direct.done.output
        if has_tls:
            expect("a test by TLS", {TARGET: [("PASSED", "ran")]}, direct.results, direct.done.output)
        _check_refusals(client, flags, has_tls=has_tls)
        return "Bazel's own TLS" if has_tls else "a tunnel, because this Bazel speaks no TLS"


def _check_refusals(client: Client, flags: Mapping[str, str], *, has_tls: bool) -> None:
    """Check who is let in, by a tunnel if this Bazel speaks no TLS."""
    anonymous = {key: value for key, value in flags.items() if not key.startswith("tls_client")}
    for what, known, instance, error in (
        ("a client with all", flags, INSTANCE, ""),
        ("a client without a certificate", anonymous, INSTANCE, "UNAVAILABLE"),
        ("a client of another instance", flags, "another", "Invalid instance name"),
    ):
        port = int(known["remote_executor"].rpartition(":")[2])
        way: AbstractContextManager[int | None] = nullcontext(None) if has_tls else tunnel(port, known)
        with way as plain:
            used = {**known, "remote_instance_name": instance}
            if plain is not None:
                used = {"remote_executor": f"grpc://127.0.0.1:{plain}", "remote_instance_name": instance}
            tested = client.test(*_options(used), "--remote_retries=0", TARGET)
        output = tested.done.output
        expect(f"{what}: exit status", REMOTE_ERROR if error else 0, tested.done.status, output)
        expect(f"{what}: the reason", True, error in output, output)
        expect(f"{what}: results", {} if error else {TARGET: [("PASSED", "ran")]}, dict(tested.results), output)


def _options(flags: Mapping[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in flags.items()]
