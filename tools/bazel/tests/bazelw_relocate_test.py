"""The list of jars of a Bazel that lies in a prefix."""

from __future__ import annotations

import zipfile
from pathlib import Path

from bazel_bootstrap.relocate import complete_jar_list

JARS = "usr/share/java"


def make_jar(prefix: Path, name: str, class_path: str | None) -> None:
    """Write a jar; without a manifest if `class_path` is None."""
    (prefix / JARS).mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(prefix / JARS / name, "w") as archive:
        archive.writestr("Some.class", "")
        if class_path is not None:
            manifest = f"Manifest-Version: 1.0\r\nClass-Path: {class_path}\r\nCreated-By: x\r\n"
            archive.writestr("META-INF/MANIFEST.MF", manifest)


def test_the_jar_list_is_closed_under_class_path(tmp_path: Path) -> None:
    """Otherwise the server starts and no client ever connects."""
    make_jar(tmp_path, "listed.jar", f"direct.jar /{JARS}/absolute.jar opti\r\n onal.jar wrap\r\n ped.jar")
    make_jar(tmp_path, "direct.jar", "indirect.jar listed.jar")
    for name in ("absolute.jar", "indirect.jar", "wrapped.jar"):
        make_jar(tmp_path, name, None)
    make_jar(tmp_path, "unrelated.jar", "direct.jar")
    listing = tmp_path / "list"
    listing.write_text(f"/{JARS}/listed.jar\n/{JARS}/missing.jar\n")
    complete_jar_list(tmp_path, listing)
    expected = ("listed.jar", "direct.jar", "absolute.jar", "wrapped.jar", "indirect.jar")
    assert listing.read_text().splitlines() == [f"{tmp_path}/{JARS}/{name}" for name in expected]
