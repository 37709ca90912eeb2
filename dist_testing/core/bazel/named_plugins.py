"""A plugin of pytest that keeps plugins out which no dep of the target names.

A hub of //wheels gives each test all packages of its lock, and pytest loads the plugins of all packages that it finds.
With this plugin a target gets those of the packages that its deps name. `-p NAME`, PYTEST_PLUGINS and a conftest.py's
`pytest_plugins` load any other one.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

# Of each hub in the runfiles: `packages.txt` lists its packages, and beside it lies a file for each that a dep names.
# wheels/private/hub_repo.bzl writes them.
_FOLDER = "_named"
_PACKAGES = "packages.txt"


def _unnamed_plugins(runfiles: Path) -> list[str]:
    """Return the names of the installed plugins in hubs whose package no dep names."""
    named: set[str] = set()
    packages: set[str] = set()
    for folder in runfiles.glob(f"*/{_FOLDER}"):
        named.update(os.listdir(folder))
        packages.update((folder / _PACKAGES).read_text(encoding="utf-8").split())
    unnamed = packages - named
    return [
        point.name
        for point in entry_points(group="pytest11")
        if point.dist is not None and re.sub(r"[-_.]+", "_", point.dist.name).lower() in unnamed
    ]


class _Unnamed:
    """Blocks the plugins while pytest loads all that are installed."""

    def __init__(self, manager: pytest.PytestPluginManager) -> None:
        runfiles = os.environ.get("TEST_SRCDIR") or os.environ.get("RUNFILES_DIR")
        found = _unnamed_plugins(Path(runfiles)) if runfiles else []
        # $PYTEST_PLUGINS (user): plug-ins that pytest loads; under Bazel including those of packages that the target
        # does not name.
        wanted = os.environ.get("PYTEST_PLUGINS", "").split(",")
        # A `-p` in the configuration comes before.
        self._names = [name for name in found if name not in wanted and not manager.has_plugin(name)]
        for name in self._names:
            manager.set_blocked(name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Let conftest.py files name any plugin."""
        for name in self._names:
            early_config.pluginmanager.unblock(name)


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Begin when this module is registered: `-p` options come before the installed plugins."""
    if plugin is sys.modules[__name__]:
        manager.register(_Unnamed(manager))
