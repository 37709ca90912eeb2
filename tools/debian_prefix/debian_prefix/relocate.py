"""Adapts unpacked programs to their prefix: links, dynamic loader and libraries."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from debian_prefix.programs import run_program


def repoint_symlinks(prefix: Path) -> None:
    """Make every absolute link in the prefix point into the prefix."""
    for folder, directories, files in os.walk(prefix):
        for name in (*directories, *files):
            path = Path(folder, name)
            if path.is_symlink():
                target = os.readlink(path)
                if target.startswith("/") and not target.startswith(f"{prefix}/"):
                    path.unlink()
                    path.symlink_to(f"{prefix}{target}")


def set_libraries(files: Iterable[Path], *, search_path: str, loader: Path, patchelf: Path, lock: int) -> None:
    """Make programs and libraries use the prefix's libc and no other.

    It writes DT_RPATH and not DT_RUNPATH: only DT_RPATH also holds for the libraries that a library
    loads, and it goes before LD_LIBRARY_PATH.

    Args:
        files: Files to change, in place. A file and a link to it count once.
        search_path: Directories to look for libraries in, separated by colons.
        loader: The prefix's dynamic loader, for all files that are not named `*.so`.
        patchelf: The program that changes them.
        lock: Descriptor of the cache's lock.

    Raises:
        ProgramError: If a file cannot be changed.
    """

    def patch(file: Path) -> None:
        command: list[str | Path] = [patchelf, "--force-rpath", "--set-rpath", search_path]
        if not file.name.endswith(".so"):
            command += ["--set-interpreter", loader]
        run_program([*command, file], lock=lock)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(patch, {file.resolve() for file in files}))
