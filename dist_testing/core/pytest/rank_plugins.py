"""Plugins of pytest on ranks: those that wrap a test do so there, and those of the runner do not.

What a wrapper of `pytest_runtest_protocol` prepares for the other hooks of its plugin has to exist on the ranks, where
these are called.
"""

from __future__ import annotations

from typing import Any

import pytest

_HOOK = "pytest_runtest_protocol"
# The runner keeps the limit of the time.
_NOT_ON_RANKS = ("dist_testing", "pytest_timeout", "xdist")
# The first three run a failed test again, in the process that failed: a rank would repeat it alone, while its peers
# wait. In the runner they run the whole case again. The others, of PyCharm and VS Code, report to the editor.
_OF_RUNNER = ("flaky", "pytest_rerunfailures", "pytest_retry", "teamcity", "vscode_pytest")


def leave_out_plugins_of_runner(config: pytest.Config) -> None:
    """Switch off the plugins that repeat or report what pytest runs, or limit its time; call it on a rank."""
    manager = config.pluginmanager
    manager.unregister(name="faulthandler")
    for plugin in manager.get_plugins():
        if _package_of(plugin) in _OF_RUNNER:
            manager.unregister(plugin)


def run_phases(item: pytest.Item) -> list[pytest.TestReport]:
    """Run setup, call and teardown of an item, and of all its fixtures, without logging the reports."""
    runner: Any = item.config.pluginmanager.getplugin("runner")
    # Where the runner was forked in the middle of a test, this item or another one is set up already.
    runner.pytest_runtest_teardown(item, item.parent)
    reports: list[pytest.TestReport] = runner.runtestprotocol(item, log=False, nextitem=None)
    return reports


def run_in_wrappers(item: pytest.Item, inner: object) -> None:
    """Run an item inside what pytest and the plugins of a rank do around a test; the plugin `inner` runs the item."""
    manager = item.config.pluginmanager
    impls = item.ihook.pytest_runtest_protocol.get_hookimpls()
    kept = {id(impl.plugin) for impl in impls if _package_of(impl.plugin) not in _NOT_ON_RANKS} | {id(inner)}
    others = [plugin for plugin in manager.get_plugins() if id(plugin) not in kept]
    manager.subset_hook_caller(_HOOK, others)(item=item, nextitem=None)


def _package_of(plugin: object) -> str:
    """Return the name of the package of a plugin, which is a module or an object; "conftest" for a conftest."""
    name: str = getattr(plugin, "__name__", "") or type(plugin).__module__
    return name.partition(".")[0]
