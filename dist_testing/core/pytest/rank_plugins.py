"""Plugins of pytest on ranks: those that wrap a test do so there, and those of the runner do not.

Log records and warnings go into the output of their rank.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.pytest.internals import hooks_without

# The runner keeps the limit of the time.
_NOT_ON_RANKS = ("dist_testing", "pytest_timeout", "xdist")
# The first three run a failed test again, in the process that failed: a rank would repeat it alone, while its peers
# wait. In the runner they run the whole case again. The others, of PyCharm and VS Code, report to the editor.
_OF_RUNNER = ("flaky", "pytest_rerunfailures", "pytest_retry", "teamcity", "vscode_pytest")
# By file: the caller of the hook around a test.
_CALLERS_KEY = pytest.StashKey[dict[Path, Any]]()


def leave_out_plugins_of_runner(config: pytest.Config) -> None:
    """Switch off the plugins that repeat or report what pytest runs, or limit its time; call it on a rank."""
    manager = config.pluginmanager
    manager.unregister(name="faulthandler")
    for plugin in manager.get_plugins():
        if _package_of(plugin) in _OF_RUNNER:
            manager.unregister(plugin)


def run_phases(item: pytest.Item) -> None:
    """Run setup, call and teardown of an item, and of all its fixtures, without logging the reports."""
    runner: Any = item.config.pluginmanager.getplugin("runner")
    # Where the runner was forked in the middle of a test, this item or another one is set up already.
    runner.pytest_runtest_teardown(item, item.parent)
    runner.runtestprotocol(item, log=False, nextitem=None)


def run_in_wrappers(item: pytest.Item) -> None:
    """Run an item inside what pytest and the plugins of a rank do around a test."""
    callers = item.session.stash.setdefault(_CALLERS_KEY, {})
    if item.path not in callers:
        others = [
            plugin
            for plugin in item.config.pluginmanager.get_plugins()
            if _package_of(plugin) in _NOT_ON_RANKS and not hasattr(plugin, "is_for_ranks")
        ]
        callers[item.path] = hooks_without(item.ihook, others, item.config).pytest_runtest_protocol
    callers[item.path](item=item, nextitem=None)


def _package_of(plugin: object) -> str:
    """Return the name of the package of a plugin, which is a module or an object; "conftest" for a conftest."""
    name: str = getattr(plugin, "__name__", "") or type(plugin).__module__
    return name.partition(".")[0]


def log_to_output(config: pytest.Config) -> None:
    """Write each log record once into the output of its rank, with the session's level and format.

    Without this, pytest keeps the records for a report that ranks do not make, and handlers that were made at import,
    such as torch's, write into the runner's captured output.
    """
    root = logging.getLogger()
    plugin: Any = config.pluginmanager.getplugin("logging-plugin")
    handler: _OutputHandler | None = None
    file_handler: logging.Handler | None = None
    foreign: list[logging.Handler] = []
    if plugin is not None:
        handler = _OutputHandler(config)
        # Without colours, as in a file.
        without_colours = type(plugin.log_file_handler.formatter)
        handler.setFormatter(without_colours(plugin.formatter._fmt, plugin.formatter.datefmt))
        if plugin.log_level is not None:
            handler.setLevel(plugin.log_level)
            root.setLevel(min(root.level, plugin.log_level))
        file_handler = plugin.log_file_handler
        # It would print every record a second time.
        foreign = [plugin.log_cli_handler]
        if getattr(file_handler, "baseFilename", None) == os.devnull:
            # It does nothing, but torch's own tests count the handlers of a logger, and logging.config closes all
            # handlers: in a worker pool, the test would seem to close a file that is not its own.
            foreign.append(plugin.log_file_handler)
            plugin.log_file_handler.close()
    # The dictionary also has placeholders for loggers that do not exist yet.
    loggers = [one for one in logging.Logger.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    for logger in (root, *loggers):
        for one in foreign:
            logger.removeHandler(one)
        others = [other for other in logger.handlers if other is not file_handler]
        for other in others:
            # Only an attribute of the handler itself: one of its class may be read-only.
            stream = vars(other).get("stream")
            if isinstance(other, logging.StreamHandler) and _is_runners_output(stream):
                # Not by `setStream`: it flushes output that the runner still had in its buffer at the fork.
                other.stream = _OUTPUT
        if handler is not None and (logger is root or not (logger.propagate or others)):
            logger.addHandler(handler)


def _is_runners_output(stream: object) -> bool:
    if not isinstance(stream, io.TextIOWrapper):
        return False
    if type(stream).__module__ == "_pytest.capture":
        return True
    with contextlib.suppress(OSError, ValueError):
        # The output of a rank that is a thread has no descriptor.
        return stream.fileno() in (1, 2)
    return False


class _Output:
    """The calling rank's output, also while a test replaces `sys.stderr`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.__stderr__, name)


_OUTPUT: Any = _Output()


class _OutputHandler(logging.StreamHandler):  # type: ignore[type-arg]  # takes arguments from Python 3.11 on
    """Writes to the rank's output, also while a test captures output."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(_OUTPUT)
        self._plugins = config.pluginmanager

    def emit(self, record: logging.LogRecord) -> None:
        capture: Any = self._plugins.getplugin("capturemanager")
        # Ranks that are threads have no capture manager.
        with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
            super().emit(record)


def print_warnings() -> None:
    """Print warnings that are not recorded into the rank's log: in the runner pytest has replaced the function."""

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))

    warnings.showwarning = show
