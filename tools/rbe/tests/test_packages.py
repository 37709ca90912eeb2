"""The places of BuildBox and PostgreSQL."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from local_cluster import packages
from local_cluster.errors import ClusterError


def install(folder: Path, *names: str) -> Path:
    """Put programs into a folder."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch(mode=0o755)
    return folder


def test_programs_of_the_machine_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a machine that has BuildBox, and cannot reach Debian, has no cluster."""
    partial = install(tmp_path / "partial", packages.BUILDBOX_PROGRAMS[0])
    whole = install(tmp_path / "whole", *packages.BUILDBOX_PROGRAMS)
    monkeypatch.setenv("PATH", f".:{partial}:{whole}")
    assert whole == packages.find_buildbox(tmp_path / "cache")


def test_database_server_is_found_where_its_programs_really_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL looks for its other files beside its program, which may be a link."""
    real = install(tmp_path / "lib/postgresql/15/bin", *packages.POSTGRES_PROGRAMS)
    links = tmp_path / "bin"
    links.mkdir()
    for name in packages.POSTGRES_PROGRAMS:
        (links / name).symlink_to(real / name)
    monkeypatch.setenv("PATH", str(links))
    assert real == packages.find_postgres(tmp_path / "cache")


def test_newest_database_server_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are compared as numbers: 9 is older than 15."""
    for version in ("9.6", "15", "14"):
        install(tmp_path / "postgresql" / version / "bin", *packages.POSTGRES_PROGRAMS)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(packages, "_POSTGRES_PLACES", (f"{tmp_path}/postgresql/*/bin",))
    assert tmp_path / "postgresql/15/bin" == packages.find_postgres(tmp_path / "cache")


def test_finished_copy_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every start would fetch the packages."""
    monkeypatch.setenv("PATH", "/nonexistent")
    copy = tmp_path / f"buildbox-{platform.machine()}-{packages._recipe_digest()}"
    programs = install(copy / "usr/bin", *packages.BUILDBOX_PROGRAMS)
    with pytest.raises(ClusterError, match="buildbox-casd is not installed, and apt-get, dpkg-deb, tar not found"):
        packages.find_buildbox(tmp_path)
    (copy / packages._FINISHED).touch()
    assert programs == packages.find_buildbox(tmp_path)
