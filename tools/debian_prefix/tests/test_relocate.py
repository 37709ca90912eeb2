"""Links of unpacked packages."""

from __future__ import annotations

import os
from pathlib import Path

from debian_prefix.relocate import repoint_symlinks


def test_absolute_links_lead_into_the_prefix(tmp_path: Path) -> None:
    """Otherwise the JVM would read its settings from the machine, which has none."""
    (tmp_path / "etc/java").mkdir(parents=True)
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/directory").symlink_to("/etc/java")
    (tmp_path / "usr/lib/dangling").symlink_to("/etc/none")
    (tmp_path / "usr/lib/relative").symlink_to("../../etc/java")
    # Twice: the second call finds links that are right already.
    repoint_symlinks(tmp_path)
    repoint_symlinks(tmp_path)
    targets = {link.name: os.readlink(link) for link in (tmp_path / "usr/lib").iterdir()}
    assert targets == {
        "directory": f"{tmp_path}/etc/java",
        "dangling": f"{tmp_path}/etc/none",
        "relative": "../../etc/java",
    }
