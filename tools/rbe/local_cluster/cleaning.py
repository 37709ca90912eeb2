"""Keeps the files of the server below a size: options, and the configuration of the program that removes the oldest.

The storages of the workers have no limit. BuildBox has an option for it, and with it an action failed for good ("Blob
not available") when one of its inputs was removed from the storage of its worker.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError

CLEANING = "cleaning"

# Share of the limit that stays after a removal, so that not every new file starts another one. Percent.
_KEPT_PERCENT = 80
# Time between two looks at the size. Seconds.
INTERVAL_S = 2
# What the program writes into its log once it has read its configuration and asked the database.
_READY_TEXT = "Cleanup started"

_SIZE = re.compile(r"(\d+)([KMGT]?)")
_FACTORS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
# Below it, not even the inputs of one small test stay. Bytes.
_LEAST_BYTES = 10_000_000

_TEXT = """\
description: {description}
monitoring:
  enabled: false
connections:
  - !sql-connection &sql
    connection-string: {database}
    pool-size: 2
    max-overflow: 2
storages:
{storages}cleanup:
  - instance-name: {instance}
    index: *storage
    high-watermark: {high}
    low-watermark: {low}
    batch-size: {batch}
    only-if-unused-for:
      seconds: {keep_s}
"""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What may be removed, and when.

    Attributes:
        limit_bytes: Size of the server's storage from which on files are removed.
        keep_s: Files that were used within this time, in seconds, stay even above the limit.
    """

    limit_bytes: int
    keep_s: int

    @property
    def low_bytes(self) -> int:
        """Size after a removal."""
        return self.limit_bytes * _KEPT_PERCENT // 100


def parse_size(text: str) -> int:
    """Return the number of bytes that `500M` or `20G` stands for.

    Raises:
        ClusterError: If it is no size, or too small.
    """
    found = _SIZE.fullmatch(text.strip().upper())
    size = int(found[1]) * _FACTORS[found[2]] if found else 0
    if size < _LEAST_BYTES:
        raise ClusterError(
            f"--cache-size={text}: " + (f"{size} bytes are too few." if found else "that is not a size."),
            "It limits the files of the server; torch's wheels alone are 1 GB.",
            "Write a number with K, M, G or T, from 10M on: --cache-size=20G.",
        )
    return size


def storages_text(storage: Path, cleaning: Cleaning | None) -> str:
    """Return the lines that declare the storage `&storage` of a configuration.

    Args:
        storage: Directory for inputs and outputs.
        cleaning: With it, the database remembers the size and the last use of each file.
    """
    path = json.dumps(str(storage))
    if cleaning is None:
        return f"  - !disk-storage &storage\n    path: {path}\n"
    return f"  - !disk-storage &files\n    path: {path}\n  - !sql-index &storage\n    sql: *sql\n    storage: *files\n"


def cleaning_config(cleaning: Cleaning, *, database: str, storage: Path, instance: str) -> str:
    """Return the configuration of BuildGrid's cleanup.

    Args:
        cleaning: What may be removed, and when.
        database: SQLAlchemy's address of the database.
        storage: Directory for inputs and outputs.
        instance: The instance name.
    """
    return _TEXT.format(
        description=json.dumps("removes files of a cluster of dist_testing"),
        database=json.dumps(database),
        storages=storages_text(storage, cleaning),
        instance=json.dumps(instance),
        high=cleaning.limit_bytes,
        low=cleaning.low_bytes,
        batch=max(1, (cleaning.limit_bytes - cleaning.low_bytes) // 4),
        keep_s=cleaning.keep_s,
    )


def has_begun(log: Path) -> bool:
    """Return whether the program watches the storage."""
    return _READY_TEXT in log.read_text(encoding="utf-8", errors="replace")
