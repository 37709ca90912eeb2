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
from dist_testing.report.model import Report, RunRecord
from dist_testing.report.page import page
from dist_testing.report.perfetto import trace
from dist_testing.report.words import plural, size, slug

__all__ = ["main", "write_page"]

_PAGE = "bazel-report.html"
_LOCAL_PAGE = "dist-report.html"


def write_page(report: Report, path: Path, *, title: str = "", same_inputs: bool = False) -> int:
    """Write the page.

    Args:
        report: The results.
        path: The file.
        title: Title of the page.
        same_inputs: Whether all invocations had equal inputs, so that they vote about flakes together.

    Returns:
        Its size in bytes.

    Raises:
        ReportError: If it cannot be written.
    """
    return write_text(path, page(report, title=title, made_wall_s=time.time(), same_inputs=same_inputs))


def write_traces(report: Report, path: Path) -> list[tuple[Path, int]]:
    """Write the trace of all runs into one file, or into a folder one for each target and one for each invocation.

    Returns:
        The files and their sizes in bytes.

    Raises:
        ReportError: If one cannot be written.
    """
    if path.name.endswith((".json", ".json.gz")):
        return [(path, write_bytes(path, trace(report.runs)))]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"{path}: the folder cannot be made: {error.strerror}.\n"
            "A file of this name exists, or the folder above is read-only.\n"
            "Choose another folder for --trace."
        ) from error
    groups: dict[str, list[RunRecord]] = {}
    for run in report.runs:
        groups.setdefault(f"invocation-{run.invocation + 1}", []).append(run)
        groups.setdefault(slug(run.target) or "target", []).append(run)
    return [
        (file, write_bytes(file, trace(runs)))
        for name, runs in sorted(groups.items())
        if any(run.wall_zero_s is not None for run in runs)
        for file in (path / f"{name}.json.gz",)
    ]


def write_text(path: Path, text: str) -> int:
    """Write a file in one step: a reader sees all of it or nothing. Returns its size in bytes.

    Raises:
        ReportError: If it cannot be written.
    """
    return write_bytes(path, text.encode("utf-8", errors="replace"))


def write_bytes(path: Path, content: bytes) -> int:
    """Write a file as `write_text` does.

    Raises:
        ReportError: If it cannot be written.
    """
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
    report = gather(paths, options.disk_cache, with_processes=options.trace is not None)
    if not report.invocations:
        for problem in report.problems:
            sys.stderr.write(f"report: {problem.subject}: {problem.text}\n")
        return 2
    out = options.out or Path(workspace or ".", _PAGE if workspace else _LOCAL_PAGE)
    written = write_page(report, out, title=options.title, same_inputs=options.same_inputs)
    cases = sum(len(run.cases) for run in report.runs)
    print(f"report: {out.absolute()}: {plural(cases, 'case')}, {size(written)}")
    if options.trace is not None:
        for path, count in write_traces(report, options.trace):
            print(f"report: {path.absolute()}: trace, {size(count)}; open it at ui.perfetto.dev")
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
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="PATH",
        help="a trace for ui.perfetto.dev: one file if it ends in .json.gz, else a folder with one for each target",
    )
    parser.add_argument("--title", default="", help="title of the page, such as the name of the CI job")
    parser.add_argument(
        "--same-inputs",
        action="store_true",
        help="all results are of the same sources, so they vote about flakes together",
    )
    parser.add_argument(
        "--disk-cache", type=Path, metavar="DIR", help="Bazel's --disk_cache (default: as in the build events)"
    )
    return parser
