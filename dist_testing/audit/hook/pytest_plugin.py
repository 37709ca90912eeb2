"""The plugin that the hook loads into each pytest of a suite: notes cases, and selects those of the plan."""

from __future__ import annotations

import functools
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from . import cases, leaving, record, uses

# Files that are no tests.
_KEPT = ("__init__.py", "conftest.py")


def pytest_configure() -> None:
    """Note that pytest runs here."""
    cases.leave_to_pytest()
    record.note("session")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files without a case of the plan."""
    if record.plan.cases is None or collection_path.suffix != ".py" or collection_path.name in _KEPT:
        return None
    files = _files_of_plan(config.rootpath)
    return True if files and str(collection_path) not in files else None


@functools.cache
def _files_of_plan(root: Path) -> frozenset[str]:
    """Return the files of the plan's cases; none if an id does not tell its file, as outside pytest's root folder."""
    files = frozenset(os.path.normpath(root / case.partition("::")[0]) for case in record.plan.cases or ())
    return files if all(map(os.path.exists, files)) else frozenset()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all cases except those of the plan."""
    if record.plan.cases is None:
        return
    wanted = frozenset(record.plan.cases)
    left_out = [item for item in items if item.nodeid not in wanted]
    items[:] = [item for item in items if item.nodeid in wanted]
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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Have the fault come in each try: plug-ins try a case again, and a try without the fault would pass."""
    record.release_fault()


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
    word: str = report.outcome if report.when == "call" or not report.failed else "error"
    if hasattr(report, "wasxfail"):
        word = "xfailed" if report.skipped else "xpassed"
    parts, error = [], ""
    if not report.passed:
        parts = [report.longreprtext, *(content for _, content in report.sections)]
        crash = getattr(report.longrepr, "reprcrash", None)
        error = (crash.message if crash is not None else parts[0]).strip().partition("\n")[0]
    more = {"phase": report.when, "word": word, "seconds": report.duration, "error": error}
    record.note_result(report.nodeid, report.outcome, "\n".join(parts), **more)
