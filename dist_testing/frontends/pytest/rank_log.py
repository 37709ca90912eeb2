"""Log records on a rank: written into its output, as pytest writes them below the failure of a test that runs here."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from dist_testing.frontends.pytest.internals import CaptureIO, DatetimeFormatter, EncodedFile

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler

__all__ = ["log_to_output"]


def log_to_output(config: pytest.Config) -> Callable[[], None]:
    """Have every record in the output of the rank that logs it, once; level and format are the session's.

    pytest itself would keep them for a report that is not made on ranks, and have handlers that were made at import,
    as torch's are, write into what it captures in the runner.

    Returns:
        Takes it back.
    """
    root = logging.getLogger()
    undo = contextlib.ExitStack()
    undo.callback(root.setLevel, root.level)
    plugin: Any = config.pluginmanager.getplugin("logging-plugin")
    handler: _OutputHandler | None = None
    # What pytest has for the whole session.
    sessions: tuple[logging.Handler, ...] = ()
    if plugin is not None:
        handler = _OutputHandler(config)
        handler.setFormatter(DatetimeFormatter(plugin.formatter._fmt, plugin.formatter.datefmt))
        if plugin.log_level is not None:
            handler.setLevel(plugin.log_level)
            root.setLevel(min(root.level, plugin.log_level))
        sessions = plugin.log_cli_handler, plugin.log_file_handler
    for logger in _loggers():
        others = [other for other in logger.handlers if other not in sessions]
        for other in others:
            # Of the handler itself: where the class has it, it may not be set.
            stream = vars(other).get("stream")
            if isinstance(other, logging.StreamHandler) and _is_runners_output(stream):
                undo.callback(setattr, other, "stream", stream)
                # Not by `setStream`, which would print what the runner had not printed yet when it was forked.
                other.stream = _OUTPUT
        if plugin is not None and plugin.log_cli_handler in logger.handlers:
            # It would tell every record a second time, as if the rank's output were pytest's own.
            logger.removeHandler(plugin.log_cli_handler)
            undo.callback(logger.addHandler, plugin.log_cli_handler)
        if handler is not None and (logger is root or not (logger.propagate or others)):
            logger.addHandler(handler)
            undo.callback(logger.removeHandler, handler)
    return undo.pop_all().close


def _loggers() -> Iterator[logging.Logger]:
    yield logging.getLogger()
    for logger in list(logging.Logger.manager.loggerDict.values()):
        # There are places kept for loggers that nobody has asked for.
        if isinstance(logger, logging.Logger):
            yield logger


def _is_runners_output(stream: object) -> bool:
    if isinstance(stream, EncodedFile | CaptureIO):
        return True
    with contextlib.suppress(OSError, ValueError):
        # Not the descriptor of every rank, where ranks are threads.
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() in (1, 2)
    return False


class _Output:
    """The calling rank's output: a test may put something else into the place of `sys.stderr`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.__stderr__, name)


_OUTPUT: Any = _Output()


class _OutputHandler(_StreamHandler):
    """Writes beside what a test captures."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(_OUTPUT)
        self._plugins = config.pluginmanager

    def emit(self, record: logging.LogRecord) -> None:
        capture: Any = self._plugins.getplugin("capturemanager")
        # On ranks that are threads there is none.
        with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
            super().emit(record)
