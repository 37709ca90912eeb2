"""Filters warnings on a rank as pytest does, and sends them to the runner, whose summary shows them."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

import pytest

from dist_testing.frontends.pytest.internals import parse_warning_filter
from dist_testing.rank.reporter import Reporter

__all__ = ["print_warnings", "recording_warnings"]


@contextlib.contextmanager
def recording_warnings(config: pytest.Config, reporter: Reporter, item: pytest.Item | None) -> Iterator[None]:
    """Apply the filters of the session and of the item, and send each warning to the runner.

    Args:
        config: pytest's.
        reporter: Sends the warnings.
        item: The item with the `filterwarnings` marks; None for a unittest method.
    """
    if not config.pluginmanager.hasplugin("warnings"):
        yield
        return
    with config._catch_configured_warnings(record=True) as recorded:
        for mark in item.iter_markers("filterwarnings") if item is not None else ():
            for text in mark.args:
                warnings.filterwarnings(*parse_warning_filter(text, escape=False))
        try:
            yield
        finally:
            for warning in recorded or ():
                reporter.warned(warning)


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
