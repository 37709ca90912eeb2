"""Makes a page of test results: `python -m dist_testing.report [RESULTS...]`, `bazel run @dist_testing//tools/report`.

RESULTS are files of build events (--build_event_json_file), event streams (pytest's --dist-events), files in JUnit's
format, and folders with any of these. Without RESULTS it reads the last build events of this workspace
(bazel-events.json), else its bazel-testlogs.

Exit status: 0 if the outputs were written, also if tests have failed; 2 if nothing could be read or written.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dist_testing.errors import ReportError
from dist_testing.report.gather import gather
from dist_testing.report.model import Report
from dist_testing.report.page import page
from dist_testing.report.words import plural, size

__all__ = ["main", "write_page"]

_PAGE = "bazel-report.html"
_LOCAL_PAGE = "dist-report.html"


def write_page(report: Report, path: Path, *, title: str = "") -> int:
    """Write the page.

    Args:
        report: The results.
        path: The file.
        title: Title of the page.

    Returns:
        Its size in bytes.

    Raises:
        ReportError: If it cannot be written.
    """
    return write_text(path, page(report, title=title, made_wall_s=time.time()))


def write_text(path: Path, text: str) -> int:
    """Write a file in one step: a reader sees all of it or nothing. Returns its size in bytes.

    Raises:
        ReportError: If it cannot be written.
    """
    content = text.encode("utf-8", errors="replace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ReportError(
            f"{path}: cannot be written: {error.strerror}.\n"
            "The folder is missing or read-only, or the disk is full.\n"
            "Choose another file."
        ) from error
    return len(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the outputs that the options ask for, and return the exit status."""
    options = _parser().parse_args(arguments)
    # The records live until the end, so that looking for garbage among them only takes time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _run(options)
    except ReportError as error:
        sys.stderr.write(f"report: {error}\n")
        return 2
    finally:
        if was_enabled:
            gc.enable()


def _run(options: argparse.Namespace) -> int:
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY")
    if directory := os.environ.get("BUILD_WORKING_DIRECTORY"):
        os.chdir(directory)
    paths = options.results or [_usual(Path(workspace or "."))]
    report = gather(paths, options.disk_cache)
    if not report.invocations:
        for problem in report.problems:
            sys.stderr.write(f"report: {problem.subject}: {problem.text}\n")
        return 2
    out = options.out or Path(workspace or ".", _PAGE if workspace else _LOCAL_PAGE)
    written = write_page(report, out, title=options.title)
    cases = sum(len(run.cases) for run in report.runs)
    print(f"report: {out.absolute()}: {plural(cases, 'case')}, {size(written)}")
    for problem in report.problems[:5]:
        sys.stderr.write(f"report: {problem.subject}: {problem.text.partition(chr(10))[0]}\n")
    return 0


def _usual(workspace: Path) -> Path:
    """Return the last results of a workspace."""
    events = workspace / "bazel-events.json"
    return events if events.exists() else workspace / "bazel-testlogs"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULTS", help="what to read")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"the page (default: {_PAGE} in the workspace, else {_LOCAL_PAGE})"
    )
    parser.add_argument("--title", default="", help="title of the page, such as the name of the CI job")
    parser.add_argument(
        "--disk-cache", type=Path, metavar="DIR", help="Bazel's --disk_cache (default: as in the build events)"
    )
    return parser
