"""Reads the results that a command gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dist_testing.core.ground.errors import ReportError
from dist_testing.report.gather import gather
from dist_testing.report.model import Report


def read_results(paths: Sequence[Path]) -> Report:
    """Read results. A part that cannot be read is named on stderr, and left out.

    Args:
        paths: As for `gather`, relative to the user's folder; empty for bazel-testlogs of the workspace.
    """
    # `bazel run` starts programs in another folder.
    if directory := os.environ.get("BUILD_WORKING_DIRECTORY"):
        os.chdir(directory)
    paths = paths or [Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or ".", "bazel-testlogs")]
    report = gather(paths, is_brief=True)
    named = {str(path) for path in paths}
    for problem in report.problems:
        if problem.subject in named:
            raise ReportError(f"{problem.subject}: {problem.text}")
        sys.stderr.write(f"{problem.subject}: {problem.text}\n")
    if not report.runs and not report.not_run:
        raise ReportError(
            f"{', '.join(named)}: nothing was tested.\n"
            "The invocation found no test, or the folder is of another command.\n"
            "Run `bazel test` first, with --build_event_json_file=<file> to read the results of that run alone."
        )
    return report
