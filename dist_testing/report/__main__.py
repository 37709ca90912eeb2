"""Makes a page of results: `python -m dist_testing.report [RESULTS...]`, `bazel run @dist_testing//tools/ci -- page`.

RESULTS are files of build events (--build_event_json_file), event streams (pytest's --dist-events), files in JUnit's
format, and folders with any of these. Without RESULTS it reads the last build events of this workspace
(bazel-events.json), else its bazel-testlogs.

With `ran-nowhere` before RESULTS it makes no page: it lists the cases that no job of a matrix has run.

Exit status: 0 if the outputs were written, even if tests have failed; 2 if nothing could be read or written.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dist_testing.core.ground.errors import ReportError
from dist_testing.report import files
from dist_testing.report.compare import Comparison, compare, compare_lines
from dist_testing.report.gather import gather
from dist_testing.report.model import Problem, Report
from dist_testing.report.page import page
from dist_testing.report.pipe import into_pipe
from dist_testing.report.ran_nowhere import NAME, parser, run
from dist_testing.report.words import grouped, plural, size

_PAGE = "bazel-report.html"
_LOCAL_PAGE = "dist-report.html"
_PROBLEMS_SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the outputs that the options ask for, and return the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == [NAME]:
        options, command = parser().parse_args(given[1:]), run
    else:
        options, command = _parser().parse_args(given), _run
    # The records live until the end, so that looking for garbage among them only takes time.
    gc.disable()
    try:
        # $BUILD_WORKING_DIRECTORY (Bazel): with `bazel run`: the directory of the user, for relative paths.
        if directory := os.environ.get("BUILD_WORKING_DIRECTORY"):
            os.chdir(directory)
        return into_pipe(lambda: command(options))
    except ReportError as error:
        sys.stderr.write(f"report: {error}\n")
        return 2
    finally:
        gc.enable()


def _run(options: argparse.Namespace) -> int:
    # $BUILD_WORKSPACE_DIRECTORY (Bazel): with `bazel run`: the root of the workspace.
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY")
    usual = Path(workspace or ".", "bazel-events.json")
    paths = options.results or [usual if usual.exists() else usual.with_name("bazel-testlogs")]
    report = _read(paths, options)
    changed = None
    if options.compare is not None:
        changed = compare(_read([options.compare], options), report), str(options.compare)
    out = options.out or Path(workspace or ".", _PAGE if workspace else _LOCAL_PAGE)
    for line in _written(options, report, out, changed):
        print(line)
    for line in _problem_lines([*report.problems, *(changed[0].unread if changed else ())]):
        sys.stderr.write(f"report: {line}\n")
    return 0


def _problem_lines(problems: Sequence[Problem]) -> Iterator[str]:
    """Yield the first problems. The same problem of several targets is one line."""
    alike = grouped((problem.text.partition("\n")[0], problem.subject) for problem in problems)
    for text, subjects in list(alike.items())[:_PROBLEMS_SHOWN]:
        others = f" (and {len(subjects) - 1} more)" if len(subjects) > 1 else ""
        yield f"{subjects[0]}{others}: {text}"
    if left_out := sum(map(len, list(alike.values())[_PROBLEMS_SHOWN:])):
        yield f"and {plural(left_out, 'more problem')}, which the page lists"


def _read(paths: Sequence[Path], options: argparse.Namespace) -> Report:
    report = gather(paths, options.disk_cache, is_brief=options.trace is None and options.json is None)
    # Of Bazel's invocation there is always something to say; of a stream without one readable event there is not.
    is_known = any(run.has_results or run.status or run.wall_zero_s is not None for run in report.runs)
    if not is_known and all(one.command == "pytest" for one in report.invocations):
        raise ReportError("\n".join(f"{problem.subject}: {problem.text}" for problem in report.problems))
    return report


def _written(
    options: argparse.Namespace, report: Report, out: Path, changed: tuple[Comparison, str] | None
) -> Iterator[str]:
    """Write all outputs, and yield a line about each."""
    text = page(report, title=options.title, made_wall_s=time.time(), same_inputs=options.same_inputs, changed=changed)
    written = files.write_text(out, text)
    cases = sum(len(run.cases) for run in report.runs)
    yield f"report: {out.absolute()}: {plural(cases, 'case')}, {size(written)}"
    if options.trace is not None:
        for path, count in files.write_traces(report, options.trace):
            yield f"report: {path.absolute()}: trace, {size(count)}; open it at ui.perfetto.dev"
    more: tuple[tuple[Path | None, str, Callable[[Path], int]], ...] = (
        (options.json, "JSON", lambda path: files.write_text(path, files.exported(report))),
        (options.ctrf, "CTRF", lambda path: files.write_text(path, files.ctrf(report))),
        (options.markdown, "Markdown", lambda path: files.write_text(path, files.markdown(report, options.title))),
        (options.junit, "JUnit", lambda path: files.write_merged_junit(report, path)),
    )
    for file, what, write in more:
        if file is not None:
            yield f"report: {file.absolute()}: {what}, {size(write(file))}"
    if options.github:
        yield from files.annotation_lines(report)
        # $GITHUB_STEP_SUMMARY (CI): with --github of `dist_testing.report`: file that gets the Markdown.
        if place := os.environ.get("GITHUB_STEP_SUMMARY"):
            files.append_text(Path(place), files.markdown(report, options.title))
    if changed is not None:
        yield from compare_lines(changed[0])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("results", nargs="*", type=Path, metavar="RESULTS", help="what to read")
    add("--out", type=Path, metavar="FILE", help=f"the page (default: {_PAGE} in the workspace, else {_LOCAL_PAGE})")
    add("--title", default="", help="title of the page, such as the name of the CI job")
    add("--compare", type=Path, metavar="BEFORE", help="other results, to say what has changed since them")
    add(
        "--trace",
        type=Path,
        metavar="PATH",
        help="a trace for ui.perfetto.dev: one file if it ends in .json.gz, else a folder with one for each target",
    )
    add("--json", type=Path, metavar="FILE", help="all results as JSON (report.schema.json)")
    add("--ctrf", type=Path, metavar="FILE", help="all results in the Common Test Report Format")
    add("--junit", type=Path, metavar="FILE", help="all results in one JUnit file")
    add("--markdown", type=Path, metavar="FILE", help="the results as Markdown")
    add("--github", action="store_true", help="print annotations for GitHub, and add Markdown to the job's summary")
    add(
        "--same-inputs", action="store_true", help="all results are of the same sources, and vote about flakes together"
    )
    add("--disk-cache", type=Path, metavar="DIR", help="Bazel's --disk_cache (default: as in the build events)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
