"""Turns results into pytest's reports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.engine.kept_files import ReportFolder
from dist_testing.core.engine.report import failure_report
from dist_testing.core.engine.report_text import printable
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.errors import LaunchError, PromiseError
from dist_testing.core.ground.outcomes import Cause, Status
from dist_testing.core.ground.spec import Spec
from dist_testing.core.pytest.command import command_alone
from dist_testing.core.pytest.rank_items import RankItem
from dist_testing.core.session.session import current_session, warnings_of

Properties = list[tuple[str, object]]

# Folder in pytest's cache for reports that are too long for the log.
_REPORTS = "dist_testing-reports"

# The name at the start of a report's first line.
_NAME = re.compile(r"^.*\(world of \d+\): ")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason in a report of a skip."""
    # Its representation is (file, line, "Skipped: reason"), or a text that a hook has set.
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def properties(result: CaseResult) -> Properties:
    """Return the properties of a result: world size, cause, facts of add-ons, culprit, outcome of each rank."""
    values: Properties = [("world_size", result.case.world_size)]
    if result.verdict.cause is not Cause.NONE:
        values.append(("cause", result.verdict.cause.value))
    values += result.facts.items()
    if result.retried:
        values.append(("retried", result.retried))
    if result.verdict.culprit is not None:
        values.append(("culprit", result.verdict.culprit))
    if result.verdict.status is not Status.PASSED:
        values += [(f"rank_{outcome.rank}", outcome.describe()) for outcome in result.outcomes]
    return values


def failure_text(item: pytest.Item, result: CaseResult, spec: Spec) -> str:
    """Return the report of a failed case, with the command that runs it alone."""
    reproduce = item.command(result, spec) if isinstance(item, RankItem) and not spec.target else ""
    reproduce = reproduce or command_alone(item, spec.target)
    session = current_session()
    keep = None if session is None else lambda whole: session.reports.keep(result, whole)
    return failure_report(result, target=spec.target, reproduce=reproduce, keep=keep)


def forward_warnings(item: pytest.Item, result: CaseResult) -> None:
    """Add the warnings of the ranks to pytest's summary, each once, with its ranks."""
    for message in warnings_of(result):
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, "nodeid": item.nodeid, "when": "runtest", "location": None}
        )


def cause_of(error: BaseException) -> Properties:
    """Return the property that tells the cause of an error; empty for the test's own."""
    if isinstance(error, PromiseError):
        return [("cause", Cause.PROMISE.value)]
    return [("cause", Cause.INFRASTRUCTURE.value)] if isinstance(error, LaunchError) else []


def text_at_test(item: pytest.Item, text: str) -> Any:
    """Return a failure as pytest shows it, and sends it to other processes: a text, at the first line of the test."""
    try:
        raise AssertionError(printable(text))
    except AssertionError as error:
        shown: Any = pytest.ExceptionInfo.from_exception(error).getrepr(style="value")
    crash = shown.reprcrash
    crash.path, line, _ = item.location
    crash.lineno = (line or 0) + 1
    # For the short summary and the message in XML. Both have the name of the test already.
    crash.message = _NAME.sub("", text.partition("\n")[0])
    return shown


def fail(item: pytest.Item, report: pytest.TestReport, text: str) -> None:
    """Make a report that of a failure with a text of this library, whatever it was."""
    report.outcome = "failed"
    # Otherwise it would be an expected failure.
    vars(report).pop("wasxfail", None)
    show(item, report, text)


def show(item: pytest.Item, report: pytest.TestReport, text: str) -> None:
    """Put a text of this library into a report."""
    report.longrepr = text_at_test(item, text)
    # It travels with the report, also under xdist.
    report.is_distributed = True  # type: ignore[attr-defined]


def report_folder(config: pytest.Config, outputs: Path | None) -> ReportFolder:
    """Return the folder of long reports: Bazel's outputs of the test, else in pytest's cache, else a temporary one."""
    if outputs is not None:
        return ReportFolder(lambda: outputs, "in test.outputs, beside the log (bazel-testlogs)")
    cache: Any = getattr(config, "cache", None)
    return ReportFolder() if cache is None else ReportFolder(lambda: Path(cache.mkdir(_REPORTS)))
