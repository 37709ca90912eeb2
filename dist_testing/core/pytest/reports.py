"""Turns results into pytest's reports, with the command that runs one case alone, as the session has run it.

It also decides whether an xfail mark expects what ranks have raised.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shlex
import sys
import unittest
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.engine.kept_files import ReportFolder, keep_logs
from dist_testing.core.engine.report import failure_report
from dist_testing.core.engine.report_text import printable
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.errors import LaunchError, PromiseError
from dist_testing.core.ground.outcomes import Cause, Status
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE, Spec
from dist_testing.core.pytest.internals import Xfail, evaluate_xfail_marks, xfailed_key
from dist_testing.core.pytest.marked_items import name_from
from dist_testing.core.pytest.options import EVENTS_OPTION, JOBS_OPTION, arguments_of_part
from dist_testing.core.session.session import current_session

Properties = list[tuple[str, object]]

# Options that choose tests, or say how many run or what is printed. All others can decide about a case.
_FLAGS = (
    *("-x", "--exitfirst", "--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first"),
    *("--sw", "--stepwise", "--stepwise-skip", "--stepwise-reset", "-q", "--quiet", "-v", "--verbose"),
    *("--no-header", "--no-summary", "-l", "--showlocals", "--setup-show"),
)
_WITH_VALUE = (
    *("-k", "-m", "--maxfail", "--deselect", "--ignore", "--ignore-glob", "-n", "--numprocesses", "--dist"),
    *("-r", "--tb", "--color", "--durations", "--durations-min", "--junitxml", "--junit-xml", "--verbosity"),
    *(EVENTS_OPTION, JOBS_OPTION),
)
# Variables that configure pytest, or torch and its backends.
# $TORCH_DISTRIBUTED_DEBUG (user): level of torch's own checks; the command in a report repeats your value.
_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "TORCH_DISTRIBUTED_DEBUG", "TORCH_FR_BUFFER_SIZE")
_PREFIXES = ("GLOO_", "NCCL_")
# $NCCL_VERSION (user): set by NVIDIA's images, for information; the command that repeats a case leaves it out.
_NO_SETTING = "NCCL_VERSION"
# Folder in pytest's cache for reports that are too long for the log.
_REPORTS = "dist_testing-reports"

# Begins the reason of an expected failure that a rank tells, so that the runner can tell it from a skip.
EXPECTED = "expected failure: "
# Begins the reason of a rank that has passed although its test has added a strict xfail mark.
UNEXPECTED = "unexpected pass: "
# The xfail marks of an item when its fixtures are set up.
_XFAIL_MARKS_KEY = pytest.StashKey[Sequence[pytest.Mark]]()
# The name at the start of a report's first line.
_NAME = re.compile(r"^.*\(world of \d+\): ")
# A line of an error in a text of pytest.
_ERROR = re.compile(r"^E +(\S.*)$", re.MULTILINE)


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


def failure_text(item: pytest.Item, result: CaseResult, spec: Spec, outputs: Path | None) -> str:
    """Return the report of a failed case, with the command that runs it alone. Keep its logs in `outputs`, if any."""
    if outputs is not None:
        keep_logs(result, outputs)
    command = None if spec.target else getattr(item, "command", None)
    reproduce = (command and command(result, spec)) or _command_alone(item, spec)
    session = current_session()
    keep = None if session is None else lambda whole: session.reports.keep(result, whole)
    return failure_report(result, target=spec.target, reproduce=reproduce, keep=keep)


def _command_alone(item: pytest.Item, spec: Spec) -> str:
    """Return the command that runs one test alone."""
    if spec.target:
        # Without the path, which differs between machines. Arguments that the target itself has do no harm; those of a
        # program come from it.
        test_filter = shlex.quote(item.nodeid.partition("::")[2])
        given = [] if hasattr(item, "command") else sys.argv[1:]
        options = [f" --test_arg={shlex.quote(argument)}" for argument in _kept(given, [])]
        return f"bazel test {spec.target} --test_filter={test_filter}{''.join(options)}"
    config = item.config
    # A worker of pytest-xdist has other arguments than its controller.
    given = getattr(config, "workerinput", {}).get("mainargv", ["", *arguments_of_part(config)])[1:]
    arguments = _kept(list(_expanded(given, config.invocation_params.dir)), config.option.file_or_dir)
    if spec.world_sizes != (DEFAULT_WORLD_SIZE,) and config.getoption("--dist-world-size") is None:
        # That of torchrun, which the command does without.
        arguments.append(f"--dist-world-size={spec.world_sizes[0]}")
    variables = [
        f"{name}={shlex.quote(value)}"
        for name, value in sorted(os.environ.items())
        if name in _VARIABLES or (name.startswith(_PREFIXES) and name != _NO_SETTING)
    ]
    # `python -m` makes the working directory importable.
    is_module = os.path.basename(sys.argv[0]) == "__main__.py"
    test = name_from(item, config.invocation_params.dir)
    return " ".join([*variables, "python -m pytest" if is_module else "pytest", shlex.join([*arguments, test])])


def _expanded(given: Iterable[str], folder: Path) -> Iterator[str]:
    """Yield the arguments, those of a file `@FILE` in its place."""
    for argument in given:
        if argument.startswith("@"):
            # A file that is gone has named tests in most cases, and is left out.
            with contextlib.suppress(OSError):
                yield from (folder / argument[1:]).read_text().splitlines()
        else:
            yield argument


def _kept(given: list[str], paths: list[str]) -> list[str]:
    """Return the arguments that can decide about a case, without the tests that they name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in _FLAGS:
        parser.add_argument(option, action="count")
    for option in _WITH_VALUE:
        parser.add_argument(option, action="append")
    # The parser of Python 3.11 and 3.12 takes -s in -xvs as a value of -v.
    given = [re.sub("^-[lqvx]+(?=[A-Za-z])", "-", argument) for argument in given]
    try:
        _, kept = parser.parse_known_args(given)
    except argparse.ArgumentError:
        # A conftest has given such an option another meaning.
        kept = list(given)
    for path in paths:
        # A path in an ini file or in the environment is not among them.
        if path in kept:
            kept.remove(path)
    return kept


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
    # For the short summary and for records. Both have the name of the test already.
    crash.message = _NAME.sub("", text.partition("\n")[0]).removeprefix(f"{item.nodeid}: ")
    return shown


def failure_message(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the message of the error in a failed report; without an error, its text."""
    if (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
        return str(crash.message)
    # Of a file that cannot be imported, and of a missing fixture, pytest has only the text.
    text = report.longreprtext.rstrip()
    return next(reversed(_ERROR.findall(text)), text)


def report_folder(config: pytest.Config, outputs: Path | None) -> ReportFolder:
    """Return the folder of long reports: Bazel's outputs of the test, else in pytest's cache, else a temporary one."""
    if outputs is not None:
        return ReportFolder(lambda: outputs, "in test.outputs, beside the log (bazel-testlogs)")
    cache: Any = getattr(config, "cache", None)
    return ReportFolder() if cache is None else ReportFolder(lambda: Path(cache.mkdir(_REPORTS)))


# Whether `xfail(raises=...)` expects what ranks have raised. The runner chooses the mark, and the rank has the error;
# two classes can have one name. So the rank tells which marks of its own item expect the exception, by their numbers.
# If none applies, one counts that the test or a fixture has added. Only a rank has it, and tells the reason.


def note_xfail_marks(item: pytest.Item) -> None:
    """Note the marks that the runner has, too; call it on a rank, before test code can add others."""
    stash: Any = item.stash
    stash[_XFAIL_MARKS_KEY] = list(item.iter_markers("xfail"))
    is_decided = item.config.getoption("runxfail", True) or evaluate_xfail_marks(item) is not None
    # With False, pytest looks for no other marks.
    stash[xfailed_key] = False if is_decided else None


def reason_of_added_xfail(item: pytest.Item, error: BaseException) -> str:
    """Return the reason of an expected failure, if a mark that was added on this rank expects the error; else ""."""
    mark = item.stash.get(xfailed_key, None)
    if mark and (mark.raises is None or _expects(mark.raises, error)):
        return f"{EXPECTED}{mark.reason}"
    return ""


def expected_by(item: pytest.Item, error: BaseException) -> tuple[int, ...]:
    """Return the numbers of the xfail marks of an item that expect an exception; call it on the rank that has it."""
    return tuple(number for number, raises in enumerate(_raises(item)) if _expects(raises, error))


def expects(item: pytest.Item, result: CaseResult) -> bool:
    """Return whether the xfail mark that pytest has chosen for the item expects all that has failed on the ranks."""
    reasons = [failure.reason for failure in result.failures]
    if item.stash.get(xfailed_key, None) is None and reasons and all(reasons):
        _decide(item, reasons[0].removeprefix(EXPECTED))
    mark = item.stash.get(xfailed_key, None)
    if mark is None or mark.raises is None:
        return mark is not None
    chosen = {number for number, raises in enumerate(_raises(item)) if raises is mark.raises}
    return not any(chosen.isdisjoint(failure.expected_by) for failure in result.failures)


def decide_xfail(item: pytest.Item, *, is_expected: bool) -> None:
    """Have pytest take the error of the call as the expected one, or not, in place of its own look at `raises`."""
    if (mark := item.stash.get(xfailed_key, None)) is not None:
        # No error is of one of no classes.
        item.stash[xfailed_key] = dataclasses.replace(mark, raises=None if is_expected else ())


def end_skipped(item: pytest.Item, reason: str) -> None:
    """Raise what pytest takes as a skip or as an expected failure, or have it report an unexpected pass."""
    if reason.startswith(EXPECTED):
        raise pytest.xfail.Exception(reason.removeprefix(EXPECTED), pytrace=False)
    if not reason.startswith(UNEXPECTED):
        raise unittest.SkipTest(reason)
    _decide(item, reason.removeprefix(UNEXPECTED), strict=True)


def _decide(item: pytest.Item, reason: str, *, strict: bool = False) -> None:
    item.stash[xfailed_key] = Xfail(reason, run=True, strict=strict, raises=None)


def _raises(item: pytest.Item) -> list[Any]:
    marks = item.stash.get(_XFAIL_MARKS_KEY, None) or item.iter_markers("xfail")
    return [mark.kwargs.get("raises") for mark in marks]


def _expects(raises: Any, error: BaseException) -> bool:
    if isinstance(raises, type | tuple):
        return isinstance(error, raises)
    # `pytest.RaisesExc` and `pytest.RaisesGroup`.
    return hasattr(raises, "matches") and bool(raises.matches(error))
