"""The option `--pool`, and the server's configuration that follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_cluster.errors import ClusterError
from local_cluster.plan import MAX_GPUS, MAX_WORKERS, parse_pool, parse_pools
from local_cluster.server_config import property_keys, server_config


@pytest.mark.parametrize(
    ("text", "announced", "present", "jobs"),
    [
        ("cpu=2", {"Pool": "cpu"}, None, 1),
        ("gpu2=1:gpus=2,jobs=3", {"Pool": "gpu2", "gpus": "2"}, 2, 3),
        # A broken promise.
        ("gpu2=1:gpus=2,present=0", {"Pool": "gpu2", "gpus": "2"}, 0, 1),
        # Properties of the user win.
        ("gpu4=1:gpus=4,Pool=other,zone=a/b", {"Pool": "other", "gpus": "4", "zone": "a/b"}, 4, 1),
    ],
)
def test_workers_of_a_pool(text: str, announced: dict[str, str], present: int | None, jobs: int) -> None:
    """Otherwise users cannot try routing by GPUs, or how tests behave in a broken pool, on a machine without GPUs."""
    workers = parse_pool(text)
    name, count = text.partition(":")[0].split("=")
    assert [worker.name for worker in workers] == [f"{name}-{number}" for number in range(1, int(count) + 1)]
    assert dict(workers[0].properties) == {"OSFamily": "linux", **announced}
    assert (workers[0].present, workers[0].jobs) == (present, jobs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cpu", "NAME is letters"),
        ("=2", "NAME is letters"),
        ("a b=1", "NAME is letters"),
        ("../x=1", "NAME is letters"),
        ("cpu=1:", "nothing follows the colon"),
        ("cpu=", "WORKERS is ''"),
        ("cpu=0", "WORKERS is '0'"),
        (f"cpu={MAX_WORKERS + 1}", f"a number from 1 to {MAX_WORKERS}"),
        ("cpu=-1", "WORKERS is '-1'"),
        ("cpu=\u0662", "WORKERS is"),
        ("cpu=1:gpus", "'gpus' is not key=value"),
        ("cpu=1:gpus=", "'gpus=' is not key=value"),
        ("cpu=1:gpus=1,,jobs=1", "'' is not key=value"),
        ("cpu=1:gpus=1,gpus=2", "'gpus' is given twice"),
        (f"cpu=1:gpus={MAX_GPUS + 1}", f"a number from 0 to {MAX_GPUS}"),
        ("cpu=1:jobs=0", "jobs is '0'"),
        ('cpu=1:zone="a"', "is not key=value"),
    ],
)
def test_malformed_pool_is_explained(text: str, reason: str) -> None:
    """A pool that silently differs from the request makes tests wait for ever."""
    with pytest.raises(ClusterError) as caught:
        parse_pool(text)
    assert reason in str(caught.value)
    assert 3 == len(str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["cpu=1", "cpu=2"], "'cpu' is given twice"),
        ([f"cpu={MAX_WORKERS}", "gpu=1"], f"{MAX_WORKERS + 1} workers in all"),
    ],
)
def test_pools_that_do_not_fit_together_are_refused(texts: list[str], reason: str) -> None:
    """Two workers would have one name, or the machine would run out of processes without a reason."""
    with pytest.raises(ClusterError, match=reason):
        parse_pools(texts)


def test_server_knows_every_property_that_a_worker_announces() -> None:
    """The server refuses an action with a property that it does not know."""
    workers = parse_pools(["cpu=1", "far=1:zone=a"])
    assert ["OSFamily", "Pool", "gpus", "zone"] == property_keys(workers)
    text = server_config(port=4, database="postgresql+psycopg2://x@/y?host=/z", storage=Path("/a b"), workers=workers)
    assert 'match-property-keys: ["OSFamily", "Pool", "gpus", "zone"]' in text
    assert 'address: "127.0.0.1:4"' in text
    assert 'path: "/a b"' in text
