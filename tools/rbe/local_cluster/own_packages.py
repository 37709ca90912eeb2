"""The Python packages of the cluster, BuildGrid first, where the program was started without them.

This repository's Bazel brings them from its own hub. Everywhere else - in a consumer's repository, or by plain Python -
the program installs the same lock file into the user cache, once for each version of Python.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from debian_prefix.cache import PARTIAL, locked, require_free_space
from debian_prefix.errors import explained_os_errors

from local_cluster.errors import ClusterError

LOCK = "requirements_rbe.txt"
INSTALLER = "wheels/install.py"

# Written last: a folder without it is unfinished.
_FINISHED = "finished"
_SITE = "site-packages"
# With the downloads. Bytes.
_NEEDED_BYTES = 400 * 10**6
# The package without which there is no server.
_NEEDED_PACKAGE = "buildgrid"


def bring_packages(library: Path, cache: Path) -> None:
    """Make the packages importable, if they are not.

    Args:
        library: The library's folder: a clone, or the runfiles of this program.
        cache: The cluster's folder in the user cache.

    Raises:
        ClusterError: If they cannot be installed.
        InstallError: If the cache cannot be written.
    """
    if importlib.util.find_spec(_NEEDED_PACKAGE) is not None:
        return
    site = str(_installed(library, cache) / _SITE)
    # First: parts of another release in the user's own packages would not fit.
    sys.path.insert(0, site)
    importlib.invalidate_caches()


def _installed(library: Path, cache: Path) -> Path:
    lock = library / LOCK
    try:
        text = lock.read_bytes()
    except OSError as error:
        raise ClusterError(
            f"'{lock}' cannot be read: {error.strerror}.",
            "It lists the cluster's Python packages, and the program was copied without it.",
            "Start the program in a clone of dist_testing, or by `bazel run @dist_testing//tools/rbe`.",
        ) from error
    # The wheels depend on the interpreter and on the C library, too.
    kind = "-".join((sys.implementation.cache_tag, platform.machine(), *platform.libc_ver()))
    folder = cache / f"python-{hashlib.sha256(kind.encode() + text).hexdigest()[:16]}"
    if not (folder / _FINISHED).exists():
        with locked(cache):
            if not (folder / _FINISHED).exists():
                with explained_os_errors(cache):
                    _install(library / INSTALLER, lock, folder)
    return folder


def _install(installer: Path, lock: Path, folder: Path) -> None:
    require_free_space(folder.parent, _NEEDED_BYTES)
    draft = folder.with_name(f"{folder.name}{PARTIAL}")
    draft.mkdir()
    sys.stderr.write(f"rbe: installing the cluster's Python packages into {folder} (once; half a minute)\n")
    sys.stderr.flush()
    try:
        done = subprocess.run(
            # Isolated, so that the packages of a launcher do not count.
            [sys.executable, "-I", str(installer), "--lock", str(lock), "--name", LOCK, str(draft)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise ClusterError(
                f"the cluster's Python packages cannot be installed:\n{done.stdout.strip()}",
                f"BuildGrid needs them; {sys.executable} installs them with pip.",
                "Remedy what the text names, or run the cluster from a clone: ./bazelw run //tools/rbe -- up",
            )
        (draft / _FINISHED).touch()
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
