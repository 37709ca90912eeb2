"""Makes virtual environments: a fresh one, and one with locked tools."""

from __future__ import annotations

import sys
from pathlib import Path

from release_steps.commands import output_of

# Left out of what the environment sees: what the wheel itself brings, and what it must work without.
_LEFT_OUT = ("__editable__", "__pycache__", "bazel_runfiles", "dist_testing", "pip", "runfiles", "setuptools")


def make_environment(folder: Path, python: Path | str, site: Path | None = None) -> Path:
    """Make a virtual environment, and return its interpreter.

    It sees the packages of the folder `site` that are not left out. Without `site`, pip installs torch.
    """
    output_of([python, "-m", "venv", folder], folder.parent)
    if site is not None:
        links = folder / "seen"
        links.mkdir()
        for entry in site.iterdir():
            if not entry.name.startswith(_LEFT_OUT) and entry.suffix != ".pth":
                (links / entry.name).symlink_to(entry)
        (packages,) = (folder / "lib").glob("python*/site-packages")
        (packages / "seen.pth").write_text(f"{links}\n", encoding="utf-8")
    return folder / "bin" / "python"


def make_tools(folder: Path, lock: Path) -> Path:
    """Make a virtual environment with the packages of a file of `tools/python/lock.py`, and return its interpreter.

    Raises:
        ReleaseError: If pip cannot install them.
    """
    python = make_environment(folder, sys.executable)
    output_of([python, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", lock], folder.parent)
    return python
