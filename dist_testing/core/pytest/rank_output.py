"""Log records and warnings of a rank, as pytest treats them: into its output."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TextIO

import pytest


def log_to_output(config: pytest.Config) -> None:
    """Write each log record once into the output of its rank, with the session's level and format.

    Without this, pytest keeps the records for a report that ranks do not make, and handlers that were made at import,
    such as torch's, write into the runner's captured output.
    """
    root = logging.getLogger()
    plugin: Any = config.pluginmanager.getplugin("logging-plugin")
    handler: _OutputHandler | None = None
    # pytest's handlers for the whole session, and those that a rank must not have.
    sessions: tuple[logging.Handler, ...] = ()
    foreign: list[logging.Handler] = []
    if plugin is not None:
        handler = _OutputHandler(config)
        # Without colours, as in a file.
        without_colours = type(plugin.log_file_handler.formatter)
        handler.setFormatter(without_colours(plugin.formatter._fmt, plugin.formatter.datefmt))
        if plugin.log_level is not None:
            handler.setLevel(plugin.log_level)
            root.setLevel(min(root.level, plugin.log_level))
        sessions = plugin.log_cli_handler, plugin.log_file_handler
        # The first would print every record a second time. The other, without --log-file, does nothing, but torch's own
        # tests count the handlers of a logger.
        foreign = [one for one in sessions if one is sessions[0] or _writes_nothing(one)]
    for logger in _loggers():
        others = [other for other in logger.handlers if other not in sessions]
        for other in others:
            # Only an attribute of the handler itself: one of its class may be read-only.
            stream = vars(other).get("stream")
            if isinstance(other, logging.StreamHandler) and _is_runners_output(stream):
                # Not by `setStream`: it flushes output that the runner still had in its buffer at the fork.
                other.stream = _OUTPUT
        for one in {*foreign} & {*logger.handlers}:
            logger.removeHandler(one)
        if handler is not None and (logger is root or not (logger.propagate or others)):
            logger.addHandler(handler)


def _writes_nothing(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.FileHandler) and handler.baseFilename == os.devnull


def _loggers() -> Iterator[logging.Logger]:
    yield logging.getLogger()
    for logger in list(logging.Logger.manager.loggerDict.values()):
        # The dictionary also has placeholders for loggers that do not exist yet.
        if isinstance(logger, logging.Logger):
            yield logger


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
    warnings.showwarning = _print_warning


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
