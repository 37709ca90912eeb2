"""The check of a cluster that removes the files that were not used for the longest time."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.remote.cluster import Client, expect, running_cluster

# The limit of the storage, and what the targets below make: two times as much. Bytes.
LIMIT = 40_000_000
TARGETS = 10
TARGET_BYTES = 8_000_000

# Limit for the removal, which spares files that were used in the last minute. Seconds.
CLEAN_LIMIT_S = 180.0

_BUILD = """
[
    genrule(
        name = "large_{{}}".format(number),
        outs = ["large_{{}}.txt".format(number)],
        # Random, so that no two files are the same.
        cmd = "head -c {size} /dev/urandom > $@",
    )
    for number in range({count})
]
"""


def check_cleaning(client: Client, rbe: Path) -> str:
    """The storage shrinks below its limit, and what was removed is made again when a build needs it.

    Args:
        client: A client in a workspace.
        rbe: The program of `//tools/rbe`.

    Returns:
        The sizes, in words.

    Raises:
        ComplaintError: If it is not so.
    """
    package = client.bazel.workspace / "tests" / "remote" / "cleaned"
    package.mkdir()
    (package / "BUILD.bazel").write_text(_BUILD.format(size=TARGET_BYTES, count=TARGETS), encoding="utf-8")
    wanted = [f"//tests/remote/cleaned:large_{number}" for number in range(TARGETS)]
    options = (f"--cache-size={LIMIT}", "--cache-keep=1")
    with running_cluster(rbe, ("cpu=1",), *options, suffix="cleaned") as cluster:
        root = Path(json.loads(cluster.call("status", "--json"))["logs"]).parent
        build = (
            "build",
            "--config=rbe_local",
            f"--remote_executor={cluster.endpoint}",
            "--remote_download_outputs=minimal",
        )
        made = client.bazel.run(*build, *wanted)
        expect("a build", 0, made.status, made.output)
        size = _settled_size(root / "storage")
        expect("the storage is below its limit", True, size <= LIMIT, cluster.call("logs", "cleaning"))
        # Bazel believes that the server has the first file, which was removed.
        again = client.bazel.run(
            *build, "--remote_download_outputs=all", "--experimental_remote_cache_eviction_retries=3", wanted[0]
        )
        expect("a build that needs a removed file", 0, again.status, again.output)
        return f"{TARGETS * TARGET_BYTES / 1e6:.0f} MB were made, {size / 1e6:.0f} MB stayed"


def _settled_size(folder: Path) -> int:
    """Return the size of a folder once it is below the limit, or when the time for that is over."""
    deadline = time.monotonic() + CLEAN_LIMIT_S
    while (size := _size(folder)) > LIMIT and time.monotonic() < deadline:
        time.sleep(2)
    return size


def _size(folder: Path) -> int:
    sizes = 0
    for path in folder.rglob("*"):
        try:
            state = path.lstat()
        except FileNotFoundError:
            # Removed since it was listed.
            continue
        sizes += state.st_size if path.is_file() else 0
    return sizes
