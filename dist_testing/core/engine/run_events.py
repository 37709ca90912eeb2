"""Makes the first event of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time

from dist_testing.core.events.event import SCHEMA, RunStarted
from dist_testing.core.ground.spec import Spec

# Packages whose versions an event file names.
_PACKAGES = ("torch", "pytest")


def run_started(spec: Spec) -> RunStarted:
    """Return the event that a run begins now. Finds the versions of packages in a few milliseconds, without imports."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            # The package has no metadata, or runs from a source tree.
            continue
    now_s = time.monotonic()
    # A worker of a remote executor may have a name of its own, and share its machine.
    host = os.environ.get("DIST_TESTING_RBE_WORKER") or platform.node()
    return RunStarted(now_s, SCHEMA, time.time() - now_s, spec.target, spec.backend.name, versions, host)
