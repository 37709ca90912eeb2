"""A cluster that removes files above a size. tests/remote/remote_check.py shows that it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_cluster import cleaning, cli, parts
from local_cluster.cleaning import Cleaning, parse_size
from local_cluster.errors import ClusterError
from local_cluster.places import ClusterFiles, Scratch
from local_cluster.plan import Plan
from local_cluster.pools import parse_pool
from local_cluster.security import Access
from local_cluster.server_config import write_server_files


def _plan(limit: Cleaning | None) -> Plan:
    workers = tuple(parse_pool("cpu=1").members())
    return Plan("local", 4, workers, Path("/nonexistent"), Path("/nonexistent"), Access(instance="team"), limit)


@pytest.mark.parametrize(
    ("text", "size"),
    [("20G", 20_000_000_000), ("1t", 1_000_000_000_000), ("10M", 10_000_000), ("10000000", 10_000_000)],
)
def test_sizes_are_understood(text: str, size: int) -> None:
    """Otherwise a limit is another one than the user wrote."""
    assert size == parse_size(text)


@pytest.mark.parametrize(
    ("text", "observed"),
    [("", "is not a size"), ("1.5G", "is not a size"), ("-1G", "is not a size"), ("9M", "9000000 bytes")],
)
def test_other_sizes_are_explained(text: str, observed: str) -> None:
    """A limit below the inputs of one action would fail every action, far from the cause."""
    with pytest.raises(ClusterError, match=observed) as raised:
        parse_size(text)
    assert 3 == len(str(raised.value).splitlines())


def test_no_cluster_starts_with_a_wrong_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the parts are started first, and the error comes from one of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert 1 == cli.main(["up", "--port=0", "--cache-size=much"])
    assert "--cache-size=much: that is not a size." in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "soon", "100001"])
def test_time_to_keep_is_at_least_a_minute(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it, the inputs of an action are removed between their upload and its start."""
    with pytest.raises(SystemExit):
        cli.main(["up", "--cache-size=1G", f"--cache-keep={text}"])
    assert f"'{text}' is not a number of minutes, from 1 on" in capsys.readouterr().err


def test_both_programs_use_the_same_index_of_the_same_storage(tmp_path: Path) -> None:
    """Otherwise the cleanup counts nothing, or removes files that the server still names."""
    files = ClusterFiles(tmp_path)
    write_server_files(_plan(Cleaning(40_000_000, 600)), files, "postgresql://db")
    server, cleanup = files.server_config.read_text(), files.cleaning_config.read_text()
    index = f'  - !disk-storage &files\n    path: "{files.storage}"\n  - !sql-index &storage\n'
    for text in (server, cleanup):
        assert index in text
        assert 'connection-string: "postgresql://db"' in text
    assert (
        'instance-name: "team"\n    index: *storage\n    high-watermark: 40000000\n    low-watermark: 32000000\n'
        in cleanup
    )
    assert "only-if-unused-for:\n      seconds: 600\n" in cleanup


def test_without_a_limit_there_is_no_index(tmp_path: Path) -> None:
    """It would cost every upload a query, for nothing."""
    files = ClusterFiles(tmp_path)
    write_server_files(_plan(None), files, "postgresql://db")
    assert "sql-index" not in files.server_config.read_text()
    assert not files.cleaning_config.exists()


def test_begin_is_read_from_the_log(tmp_path: Path) -> None:
    """Otherwise `up` succeeds although nothing will ever be removed."""
    log = tmp_path / "cleaning.log"
    log.write_text("Creating an SQL CAS Index\n")
    assert not cleaning.has_begun(log)
    log.write_text("Creating an SQL CAS Index\n INFO: Cleanup started. instance_name=''\n")
    assert cleaning.has_begun(log)


def test_program_gets_its_configuration_and_the_packages() -> None:
    """It is no part of the library, and its packages are where those of the server are."""
    part = parts.cleaning_part(Path("/somewhere/cleaning.yml"), Scratch(Path("/tmp/dist-rbe-x")))
    assert ("cleanup", "start", "/somewhere/cleaning.yml") == part.command[-5:-2]
    assert "PYTHONPATH" in part.environment
