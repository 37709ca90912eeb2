"""The plugin that the hook loads into each pytest of a suite: notes cases, and selects that of the plan."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from . import cases, leaving, record, uses


def pytest_configure() -> None:
    """Note that pytest runs here."""
    cases.leave_to_pytest()
    record.note("session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all cases except that of the plan."""
    wanted = record.plan.case
    if wanted is None:
        return
    left_out = [item for item in items if item.nodeid != wanted]
    items[:] = [item for item in items if item.nodeid == wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the harnesses of all cases, if the plan asks for them."""
    if record.plan.harnesses:
        root = str(session.config.rootpath)
        tests = {item.nodeid: uses.uses_of(item, root) for item in session.items}
        found = {
            "root": root,
            "ini": str(session.config.inipath or ""),
            "plugins": [name for name, plugin in session.config.pluginmanager.list_name_plugin() if plugin],
            "errors": session.testsfailed,
            "tests": tests,
        }
        record.note("collected", found=found)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    """Tell all processes which case runs."""
    record.begin_case(item.nodeid, str(item.path))
    yield
    record.begin_case("", "")


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_pyfunc_call() -> Generator[None, Any, None]:
    """Make the test function leavable."""
    with leaving.open_door("the test function") as token:
        outcome = yield
    error = outcome.excinfo[1] if outcome.excinfo else None
    if isinstance(error, leaving.Leave) and error.door is token:
        outcome.force_result(True)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the result of each phase."""
    if report.outcome not in ("passed", "failed", "skipped") or (report.when != "call" and report.passed):
        return
    parts = [report.longreprtext, *(content for _, content in report.sections)] if not report.passed else []
    record.note_result(report.nodeid, report.outcome, "\n".join(parts))
