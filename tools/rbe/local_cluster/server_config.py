"""BuildGrid's configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from local_cluster.cleaning import Cleaning, cleaning_config, storages_text
from local_cluster.places import ClusterFiles
from local_cluster.plan import Plan
from local_cluster.pools import GPUS_KEY, OS_KEY, POOL_KEY, Worker
from local_cluster.security import HOST, Access, Certificates, bazel_flags, make_certificates

# Longest time between two messages of a worker, and the time after which it counts as dead. Seconds. A living worker on
# a loaded machine must not count as dead.
POLL_S = 3
SILENCE_S = 15

_OPEN = Access()

_TEXT = """\
server:
  - !channel
    address: {address}
{channel}description: {description}
authorization:
  method: none
monitoring:
  enabled: false
connections:
  - !sql-connection &sql
    connection-string: {database}
    pool-size: 10
    max-overflow: 20
storages:
{storages}caches:
  - !lru-action-cache &results
    storage: *storage
    max-cached-refs: 100000
    allow-updates: true
    # A failure is not cached: its cause may be the worker.
    cache-failed-actions: false
schedulers:
  - !sql-scheduler &scheduler
    sql: *sql
    action-cache: *results
    storage: *storage
    bot-session-keepalive-timeout: {silence_s}
    session-expiry-timer-interval: 2
    poll-interval: 0.2
    bot-poll-interval: 0.2
    property-set:
      !dynamic-property-set
        unique-property-keys: [{pool_key}]
        match-property-keys: {keys}
        wildcard-property-keys: []
    # Without an assigner, jobs stay in the queue for ever.
    assigners:
      - !priority-age-assigner
        count: 1
        interval: 0.1
        priority-assignment-percentage: 100
        bot-assignment-strategy: !assign-by-capacity
instances:
  - name: {instance}
    description: {description}
    services:
      - !action-cache
        cache: *results
      - !execution
        scheduler: *scheduler
      - !bots
        scheduler: *scheduler
      - !cas
        storage: *storage
      - !bytestream
        storage: *storage
# Also the limit of concurrent calls: a client that uploads torch's wheel has thousands of them.
thread-pool-size: 5000
"""


def property_keys(workers: Iterable[Worker]) -> list[str]:
    """Return all properties that an action may require; the server refuses any other."""
    keys = {POOL_KEY, GPUS_KEY, OS_KEY}
    for worker in workers:
        keys.update(worker.properties)
    return sorted(keys)


def _channel(access: Access, certificates: Certificates | None) -> str:
    """Return how the server speaks, as lines of its channel."""
    if certificates is None:
        return "    insecure-mode: true\n"
    files = {
        "tls-server-key": certificates.key("server"),
        "tls-server-cert": certificates.certificate("server"),
    }
    if access.asks_clients:
        # With it, the server refuses clients that show no certificate of this authority.
        files["tls-client-certs"] = certificates.authority
    lines = "".join(f"      {key}: {json.dumps(str(file))}\n" for key, file in files.items())
    return f"    insecure-mode: false\n    credentials:\n{lines}"


def server_config(
    *,
    port: int,
    database: str,
    storage: Path,
    workers: Iterable[Worker],
    access: Access = _OPEN,
    certificates: Certificates | None = None,
    cleaning: Cleaning | None = None,
) -> str:
    """Return the text of the configuration.

    Args:
        port: Its port, on the loopback address only.
        database: SQLAlchemy's address of the database.
        storage: Directory for inputs and outputs.
        workers: The workers of the cluster.
        access: What a client must know and show.
        certificates: The cluster's files; None without TLS.
        cleaning: What may be removed from the storage; None for nothing.
    """
    # YAML accepts JSON's strings and lists.
    return _TEXT.format(
        address=json.dumps(f"{HOST}:{port}"),
        channel=_channel(access, certificates),
        instance=json.dumps(access.instance),
        database=json.dumps(database),
        description=json.dumps("a cluster of dist_testing on one machine"),
        keys=json.dumps(property_keys(workers)),
        pool_key=POOL_KEY,
        silence_s=SILENCE_S,
        storages=storages_text(storage, cleaning),
    )


def certificates_of(plan: Plan, files: ClusterFiles) -> Certificates | None:
    """Return the cluster's certificates; None without TLS."""
    return Certificates(files.certificates) if plan.access.tls else None


def write_server_files(plan: Plan, files: ClusterFiles, database: str) -> None:
    """Write the configuration, the certificates that it names, and the flags by which Bazel reaches the server.

    Args:
        plan: The cluster.
        files: The places of its files.
        database: SQLAlchemy's address of the database.
    """
    if plan.access.tls:
        files.certificates.mkdir(mode=0o700)
        make_certificates(files.certificates)
    certificates = certificates_of(plan, files)
    flags = bazel_flags(plan.access, plan.port, certificates)
    files.bazel_flags.write_text("".join(f"build:rbe_local {flag}\n" for flag in flags), encoding="utf-8")
    config = server_config(
        port=plan.port,
        database=database,
        storage=files.storage,
        workers=plan.workers,
        access=plan.access,
        certificates=certificates,
        cleaning=plan.cleaning,
    )
    files.server_config.write_text(config, encoding="utf-8")
    if plan.cleaning is not None:
        text = cleaning_config(plan.cleaning, database=database, storage=files.storage, instance=plan.access.instance)
        files.cleaning_config.write_text(text, encoding="utf-8")
