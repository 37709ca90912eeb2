"""BuildGrid's configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from local_cluster.plan import GPUS_KEY, HOST, OS_KEY, POOL_KEY, Worker

# Longest time between two messages of a worker, and the time after which it counts as dead. Seconds. A living worker on
# a loaded machine must not count as dead.
POLL_S = 3
SILENCE_S = 15

_TEXT = """\
server:
  - !channel
    address: {address}
    insecure-mode: true
description: {description}
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
  - !disk-storage &storage
    path: {storage}
caches:
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
  - name: ""
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


def server_config(*, port: int, database: str, storage: Path, workers: Iterable[Worker]) -> str:
    """Return the text of the configuration: `database` is SQLAlchemy's address, `storage` is for inputs and outputs."""
    # YAML accepts JSON's strings and lists.
    return _TEXT.format(
        address=json.dumps(f"{HOST}:{port}"),
        database=json.dumps(database),
        description=json.dumps("a cluster of dist_testing on one machine"),
        keys=json.dumps(property_keys(workers)),
        pool_key=POOL_KEY,
        silence_s=SILENCE_S,
        storage=json.dumps(str(storage)),
    )
