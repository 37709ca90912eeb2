"""The program brings its Python packages where nothing else does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from local_cluster import own_packages
from local_cluster.errors import ClusterError
from local_cluster.own_packages import INSTALLER, LOCK, bring_packages

# An installer of one package, which counts its runs.
_WORKS = """
import pathlib, sys
folder = pathlib.Path(sys.argv[-1])
(folder / "site-packages").mkdir()
(folder / "site-packages" / "brought_package.py").write_text("")
with open(pathlib.Path(__file__).with_name("runs"), "a") as runs:
    runs.write("x")
"""
_FAILS = "import sys; sys.exit('No index has buildgrid.')"


def _library(folder: Path, program: str) -> Path:
    (folder / INSTALLER).parent.mkdir(parents=True)
    (folder / INSTALLER).write_text(program, encoding="utf-8")
    (folder / LOCK).write_text("buildgrid==1\n", encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a package that nothing brings, on a path that is restored."""
    monkeypatch.setattr(own_packages, "_NEEDED_PACKAGE", "brought_package")
    monkeypatch.setattr(sys, "path", list(sys.path))
    # The disk of a CI machine may have less room than the real packages need.
    monkeypatch.setattr(own_packages, "require_free_space", lambda folder, needed_bytes: None)


def test_packages_are_installed_once(tmp_path: Path) -> None:
    """Otherwise every `status` takes half a minute."""
    library = _library(tmp_path / "library", _WORKS)
    before = list(sys.path)
    for _ in range(2):
        sys.path[:] = before
        bring_packages(library, tmp_path / "cache")
        assert importlib.util.find_spec("brought_package") is not None
    assert "x" == (library / INSTALLER).with_name("runs").read_text(encoding="utf-8")


def test_packages_that_are_there_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise this repository's own cluster runs on another release than the locked one."""
    monkeypatch.setattr(own_packages, "_NEEDED_PACKAGE", "pytest")
    bring_packages(tmp_path / "nothing", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_failed_installation_leaves_nothing(tmp_path: Path) -> None:
    """Otherwise the next run takes half of the packages for all."""
    library = _library(tmp_path / "library", _FAILS)
    with pytest.raises(ClusterError, match=r"No index has buildgrid\.") as raised:
        bring_packages(library, tmp_path / "cache")
    assert "run the cluster from a clone" in raised.value.way_out
    assert ["lock"] == [path.name for path in (tmp_path / "cache").iterdir()]


def test_program_without_its_files(tmp_path: Path) -> None:
    """A traceback does not help a user."""
    with pytest.raises(ClusterError, match=f"{LOCK}' cannot be read"):
        bring_packages(tmp_path, tmp_path / "cache")
