"""Moving unpacked packages from / to a prefix."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from bazel_bootstrap.relocate import complete_jar_list, repoint_symlinks

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


def test_absolute_links_lead_into_the_prefix(tmp_path: Path) -> None:
    """Otherwise the JVM would read its settings from the machine, where there are none."""
    (tmp_path / "etc/java").mkdir(parents=True)
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/directory").symlink_to("/etc/java")
    (tmp_path / "usr/lib/dangling").symlink_to("/etc/none")
    (tmp_path / "usr/lib/relative").symlink_to("../../etc/java")
    # Twice, because the second call meets links that are right already.
    repoint_symlinks(tmp_path)
    repoint_symlinks(tmp_path)
    targets = {link.name: os.readlink(link) for link in (tmp_path / "usr/lib").iterdir()}
    assert targets == {
        "directory": f"{tmp_path}/etc/java",
        "dangling": f"{tmp_path}/etc/none",
        "relative": "../../etc/java",
    }
