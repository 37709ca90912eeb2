"""Other plugins of pytest on ranks: those that wrap a test do so there, and those of the runner do not.

What a wrapper of `pytest_runtest_protocol` prepares for the other hooks of its plugin has to exist on the ranks, where
these are called.
"""

from __future__ import annotations

from typing import Any

import pytest

from dist_testing.core.pytest.internals import runtestprotocol

_HOOK = "pytest_runtest_protocol"
# pytest's own wrappers have replacements on ranks, as has a limit of the time: the runner keeps it.
_NOT_ON_RANKS = ("_pytest", "dist_testing", "pytest_timeout", "xdist")
# The first three run a failed test again, in the process that failed: a rank would repeat it alone, while its peers
# wait. In the runner they run the whole case again. The others, of PyCharm and VS Code, report to the editor.
_OF_RUNNER = ("flaky", "pytest_rerunfailures", "pytest_retry", "teamcity", "vscode_pytest")


def leave_out_plugins_of_runner(config: pytest.Config) -> None:
    """Switch off the plugins that repeat or report what pytest runs; call it on a rank."""
    manager = config.pluginmanager
    for plugin in manager.get_plugins():
        if _package_of(plugin) in _OF_RUNNER:
            manager.unregister(plugin)


def run_item(item: pytest.Item) -> None:
    """Run setup, call and teardown of an item, and of all its fixtures, inside the wrappers of other plugins."""
    manager = item.config.pluginmanager
    wrappers = {
        id(impl.plugin): impl.plugin for impl in item.ihook.pytest_runtest_protocol.get_hookimpls() if _wraps(impl)
    }
    if not wrappers:
        runtestprotocol(item, log=False, nextitem=None)
        return
    body = _Body()
    manager.register(body)
    try:
        others = [plugin for plugin in manager.get_plugins() if id(plugin) not in wrappers and plugin is not body]
        manager.subset_hook_caller(_HOOK, others)(item=item, nextitem=None)
    finally:
        manager.unregister(body)


class _Body:
    """A plugin whose only hook runs the item."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        runtestprotocol(item, log=False, nextitem=nextitem)
        return True


def _wraps(impl: Any) -> bool:
    return bool(impl.wrapper or impl.hookwrapper) and _package_of(impl.plugin) not in (*_NOT_ON_RANKS, *_OF_RUNNER)


def _package_of(plugin: object) -> str:
    """Return the name of the package of a plugin, which is a module or an object; "conftest" for a conftest."""
    name: str = getattr(plugin, "__name__", "") or type(plugin).__module__
    return name.partition(".")[0]
