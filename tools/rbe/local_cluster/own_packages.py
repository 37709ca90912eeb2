"""The Python packages of the cluster, BuildGrid first, where the program was started without them.

This repository's Bazel brings them from its own hub. Everywhere else - in a consumer's repository, or by plain Python -
the program installs the same lock file into the user cache, once for each version of Python.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

from debian_prefix.cache import make_once, user_cache
from debian_prefix.errors import InstallError

LOCK = "requirements_rbe.txt"
INSTALLER = "wheels/install.py"

_SITE = "site-packages"
# With the downloads. Bytes.
_NEEDED_BYTES = 400 * 10**6
# The package without which there is no server.
_NEEDED_PACKAGE = "buildgrid"


def bring_packages(library: Path) -> None:
    """Make the packages importable, if they are not. The library is a clone, or the runfiles of this program."""
    if importlib.util.find_spec(_NEEDED_PACKAGE) is not None:
        return
    lock = library / LOCK
    try:
        text = lock.read_bytes()
    except OSError as error:
        raise InstallError(
            f"'{lock}' cannot be read: {error.strerror}.",
            "It lists the cluster's Python packages, and the program was copied without it.",
            "Start the program in a clone of dist_testing, or by `bazel run @dist_testing//tools/rbe`.",
        ) from error
    # The wheels depend on the interpreter and on the C library, too.
    kind = "-".join((sys.implementation.cache_tag, platform.machine(), *platform.libc_ver()))
    folder = user_cache("rbe") / f"python-{hashlib.sha256(kind.encode() + text).hexdigest()[:16]}"
    make_once(folder, _NEEDED_BYTES, lambda folder, _lock: _install(library / INSTALLER, lock, folder))
    # First: parts of another release in the user's own packages would not fit.
    sys.path.insert(0, str(folder / _SITE))
    importlib.invalidate_caches()


def _install(installer: Path, lock: Path, folder: Path) -> None:
    sys.stderr.write(f"rbe: installing the cluster's Python packages into {folder} (once; half a minute)\n")
    sys.stderr.flush()
    done = subprocess.run(
        # Isolated, so that the packages of a launcher do not count.
        [sys.executable, "-I", str(installer), "--lock", str(lock), "--name", LOCK, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise InstallError(
            f"the cluster's Python packages cannot be installed:\n{done.stdout.strip()}",
            f"BuildGrid needs them; {sys.executable} installs them with pip.",
            "Remedy what the text names, or run the cluster from a clone: ./bazelw run //tools/rbe -- up",
        )
