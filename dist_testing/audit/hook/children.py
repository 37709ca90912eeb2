"""Keeps the hook in processes that a harness starts with an environment of its own."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

_KEPT = ("DIST_TESTING_AUDIT", "DIST_TESTING_AUDIT_BOOTSTRAP")


def keep_environment(subprocess: ModuleType) -> None:
    """Have `subprocess.Popen` add the audit's variables to an environment that lacks them."""
    start = subprocess.Popen.__init__

    @functools.wraps(start)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("env") is not None:
            kwargs["env"] = with_hook(kwargs["env"])
        start(self, *args, **kwargs)

    subprocess.Popen.__init__ = __init__


def with_hook(env: Any) -> Any:
    """Return an environment in which Python starts the hook; the same one if its names are bytes."""
    bootstrap = os.environ.get("DIST_TESTING_AUDIT_BOOTSTRAP", "")
    if not bootstrap or not all(isinstance(name, str) for name in env):
        return env
    added = dict(env)
    for name in _KEPT:
        if name in os.environ:
            added.setdefault(name, os.environ[name])
    paths = str(added.get("PYTHONPATH", "")).split(os.pathsep)
    if bootstrap not in paths:
        added["PYTHONPATH"] = os.pathsep.join([bootstrap, *(path for path in paths if path)])
    return added
