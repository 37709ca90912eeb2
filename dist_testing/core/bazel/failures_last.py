"""Prints the reports of failures last: most users of Bazel read only the end of a log."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.pytest.reports import failure_message

# Limits of the list of failures at the end of the log.
_MAX_HEADLINES = 30
_HEADLINE_CHARS = 500


class FailuresLast:
    """A pytest plugin. Register it before the library's own, which prints nothing after its engine has ended."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, config: pytest.Config) -> Generator[None, object, object]:
        """Let pytest print its summary without the reports."""
        given, config.option.tbstyle = config.option.tbstyle, "no"
        try:
            return (yield)
        finally:
            config.option.tbstyle = given

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Print the reports; after several, also the first line of each."""
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        reporter.summary_errors()
        reporter.summary_failures()
        failed = [*reporter.getreports("error"), *reporter.getreports("failed")]
        if len(failed) > 1:
            reporter.write_sep("=", f"{len(failed)} failures")
            for report in failed[:_MAX_HEADLINES]:
                reporter.write_line(_headline(report))
            if len(failed) > _MAX_HEADLINES:
                reporter.write_line(f"... and {len(failed) - _MAX_HEADLINES} more; their reports are above")


def _headline(report: pytest.TestReport | pytest.CollectReport) -> str:
    return shorten(" ".join(f"{report.nodeid}: {failure_message(report)}".splitlines()), _HEADLINE_CHARS)
