"""Turns results into pytest's reports."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.engine.kept_logs import keep_logs
from dist_testing.core.engine.kept_reports import ReportFolder
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.case import CaseFailedError, CaseResult
from dist_testing.core.ground.errors import DistTestingError, LaunchError, PromiseError, UsageError
from dist_testing.core.ground.outcomes import Cause, Status
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import isolation_named
from dist_testing.core.pytest.expectations import is_expected
from dist_testing.core.pytest.internals import (
    ReprFileLocation,
    TerminalRepr,
    TerminalWriter,
    Xfail,
    evaluate_skip_marks,
    evaluate_xfail_marks,
)
from dist_testing.core.pytest.rank_items import RankItem
from dist_testing.core.session.session import current_session, warnings_of

Properties = list[tuple[str, object]]

# Folder in pytest's cache for reports that are too long for the log.
_REPORTS = "dist_testing-reports"

_COMPAT_PLUGIN = "dist_testing.compat.pytest_install"

# The name at the start of a report's first line.
_NAME = re.compile(r"^.*\(world of \d+\): ")


class _Pointer(TerminalRepr):
    """A failure whose text is printed once, at the end of the log. `str()` returns the whole text, for tools."""

    def __init__(self, text: str, location: tuple[str, int | None, str]) -> None:
        self._text = text
        path, line, _ = location
        # For the short summary and the XML's message. Both have the name of the test already.
        message = _NAME.sub("", text.partition("\n")[0])
        self.reprcrash = ReprFileLocation(path, (line or 0) + 1, message)

    def __str__(self) -> str:
        return self._text

    def toterminal(self, tw: TerminalWriter) -> None:
        tw.line(self._text.partition("\n")[0])
        tw.line("(the report is at the end of the log)")


def skip_mark(item: pytest.Item) -> str | None:
    """Why the item's own marks skip it; None if they do not.

    Raises:
        UsageError: If a mark cannot be judged: its condition fails, or it has no reason where it needs one.
    """
    try:
        skip = evaluate_skip_marks(item)
    except (pytest.fail.Exception, TypeError) as error:
        raise _unjudged(item, error) from error
    return skip.reason if skip is not None else None


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason in a report of a skip."""
    # Its representation is (file, line, "Skipped: reason"), or a text that a hook has set.
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def xfail_mark(item: pytest.Item) -> Xfail | None:
    """The expected failure that applies to the item.

    Raises:
        UsageError: If a mark cannot be judged, or its `raises` is not a class and so needs the exception itself.
    """
    try:
        expected = None if item.config.option.runxfail else evaluate_xfail_marks(item)
    except (pytest.fail.Exception, TypeError) as error:
        raise _unjudged(item, error) from error
    raises: Any = expected.raises if expected is not None else None
    for cls in raises if isinstance(raises, tuple) else (raises,):
        if cls is not None and not isinstance(cls, type):
            raise UsageError(
                f"{item.nodeid}: xfail(raises={cls!r}).\n"
                "The exception stays on its rank, which can only tell the runner whether it is of a class.\n"
                "Give a class, or a tuple of classes; or use the context manager in the test."
            )
    return expected


def _unjudged(item: pytest.Item, error: BaseException) -> UsageError:
    return UsageError(
        f"{item.nodeid}: a skip or xfail mark of the test cannot be judged.\n"
        f"{str(error).rstrip()}\n"
        "Correct the mark of the test, its class or its module; nothing has run."
    )


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


def failure_text(name: str, result: CaseResult, spec: Spec, item: pytest.Item | None = None) -> str:
    """Return the report of a failed case, with the command that runs it alone; `name` is pytest's for the case."""
    if spec.target:
        # Without the path, which differs between machines.
        reproduce = f"bazel test {spec.target} --test_filter={shlex.quote(name.partition('::')[2])}"
    elif isinstance(item, RankItem):
        reproduce = item.command(result, spec)
    else:
        # Without the plugin the test would run on torch's own class.
        plugin = f"-p {_COMPAT_PLUGIN} " if _COMPAT_PLUGIN in sys.modules else ""
        reproduce = f"pytest {plugin}{shlex.quote(name)}"
        # A class of threads always uses the threaded backend, whatever the backend of this run.
        if isolation_named(result.case.isolation).fits(spec.backend):
            reproduce += f" --dist-backend={spec.backend.name} --dist-world-size={result.case.world_size}"
            if result.case.nodes > 1:
                reproduce += f" --dist-nodes={result.case.nodes}"
    session = current_session()
    keep = None if session is None else lambda whole: session.reports.keep(result, whole)
    return failure_report(result, target=spec.target, reproduce=reproduce, keep=keep)


def forward_warnings(item: pytest.Item, result: CaseResult) -> None:
    """Add the warnings of the ranks to pytest's summary, each once, with its ranks."""
    for message in warnings_of(result):
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, "nodeid": item.nodeid, "when": "runtest", "location": None}
        )


def not_run(item: pytest.Item, error: DistTestingError) -> list[pytest.TestReport]:
    """Return the reports of a case whose ranks could not be started."""
    text = str(error)
    return failed(item, text if text.startswith(item.nodeid) else f"{item.nodeid}: {text}", 0.0, _cause_of(error))


def ended_from_outside(item: pytest.Item, error: BaseException) -> list[pytest.TestReport]:
    """Return the reports of a case that another plugin has ended in the runner, by a signal, as pytest-timeout does."""
    return failed(
        item,
        f"{item.nodeid}: {error}\n"
        "Another plugin, such as pytest-timeout, has ended the wait for the ranks; they have been killed.\n"
        "Set the limit of a distributed test by the marker's timeout or --dist-timeout: its report names the rank that "
        "did not arrive.",
        0.0,
        [("cause", Cause.INTERRUPTED.value)],
    )


def _cause_of(error: DistTestingError) -> Properties:
    if isinstance(error, PromiseError):
        return [("cause", Cause.PROMISE.value)]
    return [("cause", Cause.INFRASTRUCTURE.value)] if isinstance(error, LaunchError) else []


def passed(item: pytest.Item, duration_s: float, values: Properties) -> list[pytest.TestReport]:
    """Return the reports of a case that passed."""
    every = _three(item, _report(item, "passed", None, duration_s, values))
    # With --setup-only and --setup-plan the test itself has not run, on no rank.
    return [report for report in every if report.when != "call"] if is_setup_only(item.config) else every


def is_setup_only(config: pytest.Config) -> bool:
    """Return whether pytest sets fixtures up and runs no test; `--setup-plan` includes that."""
    return bool(config.getoption("setuponly", False))


def skipped(
    item: pytest.Item, reason: str, duration_s: float = 0.0, values: Properties | None = None
) -> list[pytest.TestReport]:
    """Return the reports of a skipped case."""
    path, line, _ = item.location
    longrepr = (str(item.path or path), (line or 0) + 1, f"Skipped: {reason}")
    return _three(item, _report(item, "skipped", longrepr, duration_s, values or []))


def failed(
    item: pytest.Item, text: str, duration_s: float, values: Properties | None = None
) -> list[pytest.TestReport]:
    """Return the reports of a failed case."""
    report = _report(item, "failed", None, duration_s, values or [])
    point_to_end(report, text)
    return _three(item, report)


def point_to_end(report: pytest.TestReport, text: str) -> None:
    """Make the terminal point to the end of the log, where `text` stands; under xdist reports arrive as plain text."""
    report.dist_failure = text  # type: ignore[attr-defined]  # extra attributes travel with a report, also under xdist
    report.longrepr = _Pointer(text, report.location)


def fail(report: pytest.TestReport, text: str) -> None:
    """Turn any report into a failure; `text` is printed at the end of the log."""
    report.outcome = "failed"
    # Otherwise it would be an expected failure.
    vars(report).pop("wasxfail", None)
    point_to_end(report, text)


def failed_teardown(item: pytest.Item, text: str, error: DistTestingError | None = None) -> pytest.TestReport:
    """Return the report of a failure after the end of the test; `error` gives the cause if it is one of ours."""
    values = _cause_of(error) if error is not None else []
    report = _report(item, "failed", None, 0.0, values, when="teardown")
    point_to_end(report, text)
    return report


def expected_failure(item: pytest.Item, reason: str, duration_s: float) -> list[pytest.TestReport]:
    """Return the reports of a case that failed as expected, or was not run."""
    report = _report(item, "skipped", reason, duration_s, [])
    report.wasxfail = reason
    return _three(item, report)


def judge_expected(item: pytest.Item, expected: Xfail, result: CaseResult, spec: Spec) -> list[pytest.TestReport]:
    """Return the reports of a case that is marked as an expected failure and was run.

    Only an exception in the test is an expected failure; a crash, a hang or a broken machine never is.
    """
    if all(is_expected(item, expected, failure) for failure in result.failures):
        if result.has_only_raised:
            return expected_failure(item, expected.reason, result.duration_s)
        result = result.with_exceptions_expected()
    values = properties(result)
    if result.verdict.status is Status.FAILED:
        return failed(item, failure_text(item.nodeid, result, spec), result.duration_s, values)
    if is_setup_only(item.config):
        return passed(item, result.duration_s, values)
    if expected.strict:
        return failed(item, f"{item.nodeid}: [XPASS(strict)] {expected.reason}", result.duration_s, values)
    reports = passed(item, result.duration_s, values)
    reports[1].wasxfail = expected.reason
    return reports


def add_error(report: pytest.TestReport, error: DistTestingError) -> None:
    """Replace the report's text by the error's, which is written for the user."""
    point_to_end(report, str(error))
    report.user_properties += _cause_of(error)


def add_result(
    report: pytest.TestReport, excinfo: pytest.ExceptionInfo[BaseException] | None, spec: Spec, outputs: Path | None
) -> None:
    """Put the result of the ranks into the report of a unittest case."""
    if excinfo is None or not isinstance(excinfo.value, CaseFailedError):
        return
    result = excinfo.value.result
    point_to_end(report, failure_text(report.nodeid, result, spec))
    report.user_properties += properties(result)
    if outputs is not None:
        keep_logs(result, outputs)


def _three(item: pytest.Item, call: pytest.TestReport) -> list[pytest.TestReport]:
    # Tools expect reports of setup and teardown; both happened on the ranks.
    return [
        _report(item, "passed", None, 0.0, [], when="setup"),
        call,
        # pytest's XML takes a case's properties from the teardown's report.
        _report(item, "passed", None, 0.0, list(call.user_properties), when="teardown"),
    ]


def _report(
    item: pytest.Item, outcome: Any, longrepr: Any, duration_s: float, values: Properties, when: Any = "call"
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        duration=duration_s,
        user_properties=values,
    )


def report_folder(config: pytest.Config, outputs: Path | None) -> ReportFolder:
    """Return the folder of long reports: Bazel's outputs of the test, else in pytest's cache, else a temporary one."""
    if outputs is not None:
        return ReportFolder(lambda: outputs, "in test.outputs, beside the log (bazel-testlogs)")
    cache: Any = getattr(config, "cache", None)
    return ReportFolder() if cache is None else ReportFolder(lambda: Path(cache.mkdir(_REPORTS)))
