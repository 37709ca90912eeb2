"""The quarantine in a session of pytest."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dist_testing import built_in
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import DistTestingError
from dist_testing.core.ground.record import OF_THE_MACHINE
from dist_testing.core.ground.runfiles import find_runfiles
from dist_testing.core.pytest.marked_items import RUN_SPEC_KEY, SPEC_KEY, is_marked, is_multi_process
from dist_testing.core.pytest.pytest_rank import current_world
from dist_testing.core.pytest.reports import failure_message
from dist_testing.quarantine.rows import Row, RowFinder, is_pattern, pattern_of, read_rows, two_rows
from dist_testing.selection.need import need_of

_OPTION = "dist_quarantine"
_ROW_KEY = pytest.StashKey[Row]()
# The name of the property that tells how a quarantined case ended; `report.flakes` reads it, too.
PROPERTY = "quarantine"
# Begins the reason of a skip, and of a failure that does not count.
_PREFIX = "quarantined: "
# Where a worker of pytest-xdist leaves what it has found for the process that reports.
_FOUND = "dist_quarantine"
_BEFORE_WILDCARD = re.compile(r"[^*?]*/")


def _file_of(config: pytest.Config) -> Path:
    if given := config.getoption(_OPTION):
        folder, text = config.invocation_params.dir, str(given)
    elif text := config.getini(_OPTION):
        folder = config.inipath.parent if config.inipath else config.rootpath
    else:
        return built_in.QUARANTINE_FILE
    path = folder / text
    if "TEST_SRCDIR" in os.environ and not path.exists() and (rlocation := find_runfiles()) is not None:
        # Bazel's `$(rlocationpath)`.
        return Path(rlocation(text) or path)
    return path


class Quarantine:
    """Skips cases, takes failures of cases out of the verdict, tells both, and fails the session for wrong rows."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        rows = read_rows(_file_of(config))
        today = date.today()
        self._expired = [row for row in rows if row.expires < today]
        self._rows = [row for row in rows if row.expires >= today]
        self._collected = Collected(config)
        self._stale: list[tuple[int, str]] = []
        # Rows that name cases here and apply to none of them, and why.
        self._unmet: dict[int, str] = {}
        # The report of a row, while pytest takes it.
        self._row_report: pytest.TestReport | None = None
        self._told: list[pytest.TestReport] = []
        # Whether a test is called now, and the first failure of a sub-test in it.
        self._is_in_call = False
        self._sub_failure = ""
        # A plug-in of Bazel's session changes it while pytest prints its summary.
        self._style: str = config.option.tbstyle

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Find the rows of all cases, also of those that will be deselected."""
        known = [item.nodeid for item in items]
        yield
        finder = RowFinder(self._rows)
        named = {found for nodeid in known for found in finder.find(nodeid)}
        self._stale = [
            (row.number, case)
            for row in self._rows
            for case in row.cases
            if (case, row) not in named and self._collected.is_judged(case)
        ]
        try:
            for item in items:
                self._put_in(item, dict.fromkeys(row for _, row in finder.find(item.nodeid)))
        except DistTestingError as error:
            raise pytest.UsageError(str(error)) from error
        for item in items:
            if (applied := item.stash.get(_ROW_KEY, None)) is not None:
                self._unmet.pop(applied.number, None)

    def _put_in(self, item: pytest.Item, rows: Mapping[Row, None]) -> None:
        applied: list[Row] = []
        place: dict[str, Any] = {}
        if rows and (is_marked(item) or is_multi_process(item)):
            need = need_of(item, self._config.stash[RUN_SPEC_KEY])
            place = {"backend": need.backend, "world_size": need.ranks, "nodes": need.nodes}
        for row in rows:
            if unmet := row.conditions.unmet(**place):
                self._unmet.setdefault(row.number, unmet)
            else:
                applied.append(row)
        if len(applied) > 1:
            raise two_rows(item.nodeid, *applied[:2])
        for row in applied:
            item.stash[_ROW_KEY] = row
            if row.mode == "skip":
                item.add_marker(pytest.mark.skip(reason=f"{_PREFIX}{row.reason}"))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what was collected."""
        self._collected.add(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_ignore_collect(self, collection_path: Path) -> Generator[None, bool | None, bool | None]:
        """Note what an option or a conftest leaves out."""
        is_ignored = yield
        if is_ignored:
            self._collected.leave_out(collection_path)
        return is_ignored

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Note that reports are of sub-tests, until the call has ended."""
        self._is_in_call, self._sub_failure = True, ""
        try:
            return (yield)
        finally:
            self._is_in_call = False

    # First, and so around all others: the report is final then.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell how a quarantined case ended. Its own failure becomes one that was expected."""
        report = yield
        row = item.stash.get(_ROW_KEY, None)
        # Fixtures that other cases have used are torn down after the last of them.
        is_decisive = report.when == "call" or (report.when == "setup" and not report.passed)
        # The runner decides, not a rank.
        if row is None or not is_decisive or current_world() is not None:
            return report
        if report.passed and self._sub_failure and not self._is_in_call:
            # For pytest, the failures of its sub-tests were expected.
            report.outcome, report.longrepr = "failed", f"in a sub-test: {self._sub_failure}"
        if report.failed and not _is_of_the_case(call, report):
            return report
        ended = "failed as expected" if report.skipped and hasattr(report, "wasxfail") else str(report.outcome)
        headline = shorten(failure_message(report).partition("\n")[0]) if report.failed else ""
        if report.failed:
            report.outcome = "skipped"
            report.wasxfail = f"{_PREFIX}{row.reason}"
        if self._is_in_call:
            # Of a sub-test; the report of the whole test has the terms of the row.
            self._sub_failure = self._sub_failure or headline
            report.quarantined = {PROPERTY: ended}  # type: ignore[attr-defined]
            return report
        told = {
            PROPERTY: ended,
            "quarantine_reason": row.reason,
            "quarantine_link": row.link,
            "quarantine_owner": row.owner,
            "quarantine_expires": str(row.expires),
            **({"quarantine_failure": headline} if headline else {}),
        }
        # The report of the teardown has them, too, and pytest's XML takes them from there.
        item.user_properties += told.items()
        report.user_properties += told.items()
        # It travels with the report, also under xdist.
        report.quarantined = told  # type: ignore[attr-defined]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, Any] | None:
        """Count quarantined failures by themselves; print no letter for a row, because the tests are over."""
        if report is self._row_report:
            return "failed", "", ""
        if getattr(report, "quarantined", {}).get(PROPERTY) != "failed":
            return None
        return "quarantined", "q", ("QUARANTINED", {"yellow": True})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the reports of quarantined cases."""
        if len(getattr(report, "quarantined", ())) > 1:
            self._told.append(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Fail for each row that has expired or names no case, after the tests."""
        result = yield
        if hasattr(self._config, "workerinput"):
            self._config.workeroutput[_FOUND] = self._stale, list(self._unmet.items())  # type: ignore[attr-defined]
        elif not self._config.option.collectonly:
            for row in self._expired:
                self._fail(session, row, _expired_text(row))
            stale = set(self._stale)
            for row in self._rows:
                if cases := [case for case in row.cases if (row.number, case) in stale]:
                    self._fail(session, row, _stale_text(row, cases))
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of pytest-xdist has found. All collect the same; one that has crashed tells nothing."""
        stale, unmet = getattr(node, "workeroutput", {}).get(_FOUND, ((), ()))
        self._stale += map(tuple, stale)
        self._unmet.update(unmet)

    def _fail(self, session: pytest.Session, row: Row, text: str) -> None:
        nodeid = f"{row.file.name}::row {row.number}"
        report = pytest.TestReport(nodeid, (row.file.name, None, nodeid), {}, "failed", text, "call")
        self._row_report = report
        session.config.hook.pytest_runtest_logreport(report=report)
        self._row_report = None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the failures, and a list of the quarantined cases."""
        style = "short" if self._style == "line" else self._style
        terminalreporter.summary_failures_combined("quarantined", "QUARANTINED FAILURES", style=style)
        if not (self._told or self._unmet):
            return
        terminalreporter.write_sep("=", "quarantined cases")
        for report in self._told:
            told = report.quarantined
            more = told.get("quarantine_failure", "")
            terminalreporter.write_line(f"{told[PROPERTY]}: {report.nodeid}{more and f': {more}'}")
            terms = f"owner {told['quarantine_owner']}, {told['quarantine_link']}, until {told['quarantine_expires']}"
            terminalreporter.write_line(f"    {told['quarantine_reason']} ({terms})")
        for row in self._rows:
            if row.number in self._unmet:
                terminalreporter.write_line(f"does not apply: {row.name}: {self._unmet[row.number]}")


class Collected:
    """What a session was asked to collect, and what it has collected."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._is_bazel = SPEC_KEY in config.stash
        # With --lf, pytest leaves out tests of a file while it collects the file.
        self._is_partial = bool(config.getoption("lf", False))
        # What the ini file names is all that a pattern of more folders can mean.
        self._asks_for_all = config.args_source is config.ArgsSource.TESTPATHS
        folder = config.invocation_params.dir
        asked = [folder / argument for argument in map(str, config.args) if "::" not in argument]
        # Without the "..".
        self._asked = [Path(os.path.abspath(path)) for path in asked]
        self._whole: set[str] = set()
        # Files with a part that failed or was skipped as a whole, or that are left out.
        self._broken: set[str] = set()
        # Folders that --ignore or a conftest leaves out of this session, with "/" at the end.
        self._left_out: set[str] = set()
        self._never = ["__pycache__", *config.getini("norecursedirs")]

    def add(self, report: pytest.CollectReport) -> None:
        """Note a file, a class or a folder that was collected."""
        (self._whole if report.passed else self._broken).add(report.nodeid.partition("::")[0])

    def leave_out(self, path: Path) -> None:
        """Note a file or a folder that this session leaves out, and not each session of the project."""
        name = os.path.relpath(path, self._root)
        if not path.is_dir():
            self._broken.add(name)
        elif not any(map(path.match, self._never)):
            self._left_out.add(f"{name}/")

    def is_judged(self, case: str) -> bool:
        """Return whether the session would have a case that fits an entry, if there was one.

        The file of the entry was collected without an error, by an argument that names no test. Outside Bazel, an entry
        whose file does not exist is judged, too. A pattern of files needs an argument for the folder of them all.
        """
        file = case.partition("::")[0]
        if self._is_partial:
            return False
        if is_pattern(file):
            files = pattern_of(file)
            found = _BEFORE_WILDCARD.match(file)
            folder = found[0] if found else ""
            if any(out.startswith(folder) or folder.startswith(out) for out in self._left_out):
                return False
            return self._is_asked(folder) and not any(map(files.fullmatch, self._broken))
        if not self._is_bazel and not (self._root / file).exists():
            return True
        return file in self._whole - self._broken and self._is_asked(file)

    def _is_asked(self, name: str) -> bool:
        path = self._root / name
        return any(
            path.is_relative_to(asked) or (self._asks_for_all and asked.is_relative_to(path)) for asked in self._asked
        )


def _is_of_the_case(call: pytest.CallInfo[None], report: pytest.TestReport) -> bool:
    """Return whether a failure is the test's own: not of the machine, and no wrong use of the library."""
    error = call.excinfo and call.excinfo.value
    cause = dict(report.user_properties).get("cause")
    return not isinstance(error, DistTestingError) and cause not in OF_THE_MACHINE


def _expired_text(row: Row) -> str:
    return (
        f"{row.name} has expired on {row.expires}: {row.reason}; owner {row.owner}, {row.link}.\n"
        "The row does not apply any more, so failures of its cases count again.\n"
        "Repair the cases and remove the row (python -m dist_testing.quarantine prune FILE), or agree on a later date."
    )


def _stale_text(row: Row, cases: Sequence[str]) -> str:
    return (
        f"{row.name} names no case: {', '.join(map(repr, cases))}; owner {row.owner}, {row.link}.\n"
        "A test was removed or renamed; its file was collected as a whole, and has no case of this name.\n"
        "Remove the entry, or write the node id as reports show it, from the root of the project."
    )
