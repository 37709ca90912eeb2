"""Warnings on a rank: filtered as pytest filters them, and told to the runner, whose summary shows them."""

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
    """Apply the filters of the session and of the item, and tell the runner of each warning.

    Args:
        config: pytest's.
        reporter: Tells the runner.
        item: Whose `filterwarnings` marks count; None for a test of unittest.
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
    """Have warnings that nobody records in the rank's log: pytest in the runner has taken them for itself."""
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
