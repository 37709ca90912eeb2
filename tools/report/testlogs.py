"""Reads the results of an invocation: folders such as bazel-testlogs, single test.xml files, or build events."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from build_events import read_invocation

from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import CaseRecord
from dist_testing.report.gather import label_of
from dist_testing.report.model import is_label
from dist_testing.report.result_xml import read_xml


@dataclass(frozen=True, slots=True)
class Run:
    """One test.xml: a run of a target, or of one of its shards.

    Attributes:
        target: Its label.
        cases: The cases in the file.
    """

    target: str
    cases: Sequence[CaseRecord]


@dataclass(frozen=True, slots=True)
class Results:
    """The results of one or more invocations.

    Attributes:
        runs: All runs that were found.
        incompatible: Targets that Bazel itself has skipped; known from build events only.
        unread: Targets whose results are not on this machine, for example in a remote cache.
    """

    runs: Sequence[Run]
    incompatible: Sequence[str] = ()
    unread: Sequence[str] = ()


def go_where_the_user_is() -> Path:
    """Under `bazel run`, make relative paths relative to the user's folder.

    Returns:
        The folder of the last results, where Bazel links them.
    """
    if directory := os.environ.get("BUILD_WORKING_DIRECTORY"):
        os.chdir(directory)
    return Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or ".", "bazel-testlogs")


def read_results(paths: Sequence[Path]) -> Results:
    """Read all results in `paths`.

    Args:
        paths: Folders to search for test.xml files, such files, or files of build events
            (`--build_event_json_file`), which describe exactly one invocation.

    Raises:
        ReportError: If there are no results, or a file has other content.
    """
    runs: list[Run] = []
    incompatible: list[str] = []
    unread: list[str] = []
    for path in paths:
        if path.is_dir():
            files = sorted(Path(path).rglob("test.xml"))
            if not files:
                raise _nothing(path, "the folder has no test.xml in it")
            runs += [run for file in files for run in _read_file(file)]
        elif path.suffix == ".xml":
            runs += _read_file(path)
        elif path.is_file():
            found = _read_events(path)
            runs += found.runs
            incompatible += found.incompatible
            unread += found.unread
        else:
            raise _nothing(path, "there is no such file or folder")
    return Results(runs, incompatible, unread)


def _read_file(path: Path, target: str = "") -> list[Run]:
    return [
        Run(target or (suite.name if is_label(suite.name) else label_of(path)), suite.cases) for suite in read_xml(path)
    ]


def _read_events(path: Path) -> Results:
    runs: list[Run] = []
    unread: set[str] = set()
    invocation = read_invocation(path)
    if not invocation.is_complete:
        raise ReportError(
            f"{path}: the build events are incomplete after {len(invocation.attempts)} results.\n"
            "Bazel was killed, or could not write them.\n"
            "Run `bazel test --build_event_json_file=FILE` to its end, and name that file."
        )
    if not invocation.attempts and not invocation.incompatible:
        raise _nothing(path, "the invocation of these build events tested nothing")
    for attempt in invocation.attempts:
        if attempt.xml is not None:
            runs += _read_file(attempt.xml, attempt.target)
        else:
            unread.add(attempt.target)
    return Results(runs, invocation.incompatible, sorted(unread))


def _nothing(path: Path, why: str) -> ReportError:
    return ReportError(
        f"{path}: {why}.\n"
        "Results come from folders such as bazel-testlogs, from test.xml files, or from build events.\n"
        "Run `bazel test` first, with --build_event_json_file=<file> to read the results of that run alone."
    )
