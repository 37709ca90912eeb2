"""The option `--pool`, and the server's configuration that follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_cluster.errors import ClusterError
from local_cluster.pools import MAX_GPUS, MAX_WORKERS, parse_pool, parse_pools
from local_cluster.server_config import property_keys, server_config


def test_pool_of_workers_without_gpus() -> None:
    """Otherwise the simplest command starts nothing, or simulates GPUs where tests should see the machine's own."""
    workers = parse_pool("cpu=2").members()
    assert ["cpu-1", "cpu-2"] == [worker.name for worker in workers]
    assert {"Pool": "cpu", "OSFamily": "linux"} == dict(workers[0].properties)
    assert workers[0].present is None
    assert workers[0].jobs == 1


def test_gpus_are_announced_and_simulated() -> None:
    """Otherwise users cannot try routing by GPUs on a machine without GPUs."""
    (worker,) = parse_pool("gpu2=1:gpus=2,jobs=3").members()
    assert "2" == worker.properties["gpus"]
    assert (2, 3) == (worker.present, worker.jobs)


def test_broken_promise() -> None:
    """Otherwise users cannot try how tests behave in a broken pool."""
    (worker,) = parse_pool("gpu2=1:gpus=2,present=0").members()
    assert "2" == worker.properties["gpus"]
    assert 0 == worker.present


def test_properties_of_the_user_win() -> None:
    """Otherwise users cannot start a worker with wrong properties."""
    (worker,) = parse_pool("gpu4=1:gpus=4,Pool=other,zone=a/b").members()
    assert {"Pool": "other", "OSFamily": "linux", "gpus": "4", "zone": "a/b"} == dict(worker.properties)


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


def test_pool_that_is_given_twice_is_refused() -> None:
    """Two pools of one name would have workers of one name."""
    with pytest.raises(ClusterError, match="'cpu' is given twice"):
        parse_pools(["cpu=1", "cpu=2"])


def test_too_many_workers_in_all_are_refused() -> None:
    """A machine that runs out of processes does not report why."""
    with pytest.raises(ClusterError, match=f"{MAX_WORKERS + 1} workers in all"):
        parse_pools([f"cpu={MAX_WORKERS}", "gpu=1"])


def test_server_knows_every_property_that_a_worker_announces() -> None:
    """The server refuses an action with a property that it does not know."""
    workers = [worker for pool in parse_pools(["cpu=1", "far=1:zone=a"]) for worker in pool.members()]
    assert ["OSFamily", "Pool", "gpus", "zone"] == property_keys(workers)
    text = server_config(port=4, database="postgresql+psycopg2://x@/y?host=/z", storage=Path("/a b"), workers=workers)
    assert 'match-property-keys: ["OSFamily", "Pool", "gpus", "zone"]' in text
    assert 'address: "127.0.0.1:4"' in text
    assert 'path: "/a b"' in text
