"""Writes the files of a report, each in one step: a reader sees all of it or nothing.

Most are for other programs: JSON with a published schema, CTRF, JUnit, and what GitHub shows of a job: annotations, and
Markdown for its summary.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dist_testing.core.bazel.junit import XmlSuite, write_suites
from dist_testing.core.ground.codec import shape_of
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import BAD, STATUSES, CaseRecord
from dist_testing.core.ground.whole_file import whole_file
from dist_testing.report import facts
from dist_testing.report.model import Report, RunRecord
from dist_testing.report.perfetto import trace
from dist_testing.report.render import fragment
from dist_testing.report.words import WORDS, clean, count_of, grouped, one_line, slug

# Increase it when a field is removed or changes its meaning. Readers leave out fields that they do not know.
_SCHEMA = 2
SCHEMA_FILE = Path(__file__).parent / "report.schema.json"
_MAX_TEXT_CHARS = 64 * 1024
_TEMPLATE = Path(__file__).parent / "templates" / "summary.jinja"
# GitHub shows this many annotations of one step, and a summary of this size (1 MiB; characters may need four bytes).
_MAX_ANNOTATIONS = 10
_MAX_MARKDOWN_CHARS = 200_000
_MAX_FAILURES = 50
_MAX_BLOCK_CHARS = 4_000
# pytest's last line about a failure, or a frame of Python's traceback.
_PLACE = re.compile(r"^(?P<file>[^\s:\"]+\.py):(?P<line>\d+): \w+", re.MULTILINE)
# Where Bazel, a sandbox or an executor has put a file of the workspace.
_RUNFILES = re.compile(r"^/.*\.runfiles/[^/]+/")
_OF_LIBRARIES = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3\.\d+|dist_testing/(?:core|run))/")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+\.py)", line (?P<line>\d+)', re.MULTILINE)


def write_text(path: Path, text: str) -> int:
    """Write a text, and return its size in bytes."""
    return write_bytes(path, text.encode("utf-8", errors="replace"))


def write_bytes(path: Path, content: bytes) -> int:
    """Write a file, and return its size in bytes."""
    with _writing(path), whole_file(path) as file:
        return file.write(content)


def append_text(path: Path, text: str) -> None:
    """Append a text to a file."""
    with _writing(path), path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(text)


def write_merged_junit(report: Report, path: Path) -> int:
    """Write all results into one JUnit file, a suite for each run, and return its size in bytes."""
    with _writing(path):
        write_suites(
            path, [XmlSuite(f"{run.target}{run.in_part}", facts.told_cases(run)) for run in facts.final_runs(report)]
        )
        return path.stat().st_size


def write_traces(report: Report, path: Path) -> list[tuple[Path, int]]:
    """Write the trace of all runs into one file, or into a folder one for each target and one for each invocation."""
    if path.name.endswith((".json", ".json.gz")):
        return [_write_trace(path, report.runs)]
    with _writing(path):
        path.mkdir(parents=True, exist_ok=True)
    groups = grouped(
        (name, run)
        for run in report.runs
        if run.wall_zero_s is not None
        for name in (f"invocation-{run.invocation + 1}", slug(run.target) or "target")
    )
    return [_write_trace(path / f"{name}.json.gz", runs) for name, runs in sorted(groups.items())]


def _write_trace(path: Path, runs: Sequence[RunRecord]) -> tuple[Path, int]:
    content = trace(runs)
    # Without a time of making, so that equal results are equal files.
    packed = gzip.compress(content, compresslevel=6, mtime=0) if path.suffix == ".gz" else content
    return path, write_bytes(path, packed)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be written: {error.strerror or error}.\n"
            "The folder is missing or read-only, a file is in its place, or the disk is full.\n"
            "Choose another place."
        ) from error


def exported(report: Report) -> str:
    """Return the report as JSON, in the form of report.schema.json."""
    write = shape_of(Report).write
    assert write is not None
    written = write(replace(report, not_run=tuple(facts.ledger(report))))
    for run in written["runs"]:
        del run["logs"]
        for case in run["cases"]:
            if "properties" in case:
                # JSON has no NaN and no infinity, which a test may record, also deep inside of a value.
                text = json.dumps(case["properties"], default=str)
                case["properties"] = json.loads(text, parse_constant=str)
    data = {"schema": _SCHEMA, "counts": dict(facts.status_counts(report)), **written}
    return json.dumps(data, indent=1, allow_nan=False, default=str) + "\n"


def ctrf(report: Report) -> str:
    """Return the report in the Common Test Report Format (ctrf.io)."""
    tests = []
    counts: Counter[str] = Counter()
    passes = facts.last_passes(report)
    flaky = {run.action for run in report.runs if passes.get(run.action, 0) > run.attempt}
    for run in facts.final_runs(report):
        for case in facts.told_cases(run):
            status = "failed" if case.status in BAD else "skipped" if case.status == "skipped" else "passed"
            counts[status] += 1
            test: dict[str, Any] = {
                "name": case.name,
                "status": status,
                "duration": round(case.duration_s * 1000),
                "suite": [run.target],
                "rawStatus": case.status,
                "retries": run.attempt - 1,
                "flaky": run.action in flaky and status == "passed",
            }
            if case.message:
                test["message"] = shorten(case.message, _MAX_TEXT_CHARS)
            if case.text:
                test["trace"] = shorten(case.text, _MAX_TEXT_CHARS)
            tests.append(test)
    start = min((one.began_wall_s for one in report.invocations if one.began_wall_s is not None), default=0.0)
    stop = max((one.began_wall_s + one.duration_s for one in report.invocations if one.began_wall_s), default=start)
    summary = {name: counts[name] for name in ("passed", "failed", "pending", "skipped", "other")}
    results = {
        "tool": {"name": "dist_testing"},
        "summary": {"tests": len(tests), **summary, "start": round(start * 1000), "stop": round(stop * 1000)},
        "tests": tests,
    }
    content = {"reportFormat": "CTRF", "specVersion": "0.0.0", "results": results}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def annotation_lines(report: Report) -> Iterator[str]:
    """Yield a workflow command for each failure, at the place in the sources where it happened."""
    found = [failure for failure in facts.failures(report) if not failure.recovered]
    for failure in found[:_MAX_ANNOTATIONS]:
        place = _place(failure.case) if failure.case is not None else ""
        title = _property(shorten(failure.name, 200))
        message = f"{failure.run.target}: {shorten(facts.headline(failure.run, failure.case), 1000)}"
        yield f"::error {place}title={title}::{_data(message)}"
    if len(found) > _MAX_ANNOTATIONS:
        yield f"::notice title=dist_testing::{len(found) - _MAX_ANNOTATIONS} more failures: see the report of the job"


def _place(case: CaseRecord) -> str:
    """Return the properties of an annotation that name its place: the culprit's last line in the user's sources.

    Without such a line, because the culprit crashed or no rank is to blame, it is the file of the case.
    """
    own = case.nodeid.partition("::")[0]
    story = facts.story_of(case.text)
    # The stack of a culprit that crashed or hangs is in its output, or among the stacks of all ranks.
    of_culprit = re.compile(rf"output of rank {case.culprit}$|stacks of rank\(s\) ([\d, ]+, )?{case.culprit}(,|$)")
    pieces = [*story.culprits, *[part for part in story.parts if of_culprit.match(part.title)]]
    for piece in [part.text for part in pieces] or ([case.text] if story.is_plain else []):
        found = list(_PLACE.finditer(piece)) or list(_FRAME.finditer(piece))
        for match in found if "(most recent call first)" in piece else reversed(found):
            if file := _source(match["file"], own):
                return f"file={_property(file)},line={min(int(match['line'][:9]), 10_000_000)},"
    file = _source(own, own)
    return f"file={_property(file)}," if file.endswith(".py") else ""


def _source(path: str, own: str) -> str:
    """Return a path of a traceback from the root of the checkout, as `own` is; "" if it is no source of the user."""
    path = _RUNFILES.sub("", path, count=1)
    if _OF_LIBRARIES.search(path):
        return ""
    if not path.startswith(("/", "../")):
        return path
    # $GITHUB_WORKSPACE (CI): root of the checkout, for annotations (default: the working directory).
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    found = os.path.relpath(path, root)
    if not found.startswith("../"):
        return found
    return own if own and path.endswith(f"/{own}") else ""


def _data(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(report: Report, title: str = "") -> str:
    """Return the results as Markdown, for the summary of a job or a comment."""
    counts = facts.status_counts(report)
    told = ", ".join(f"{count_of(counts[status])} {WORDS[status]}" for status in STATUSES if counts[status])
    found = facts.failures(report)
    reasons: Counter[tuple[str, str]] = Counter()
    for line in facts.ledger(report):
        if line.kind != "cached":
            reasons[line.kind, line.reason] += line.count or 1
    text = fragment(
        _TEMPLATE,
        title=title or "Test report",
        told=told or "No case ran.",
        failures=[
            (failure, shorten(facts.headline(failure.run, failure.case), 600), _first(failure.case))
            for failure in found[:_MAX_FAILURES]
        ],
        quarantined=facts.quarantined(report),
        failures_left=len(found) - _MAX_FAILURES,
        reasons=sorted(reasons.items(), key=lambda item: (-item[1], item[0])),
        slow=[one for one in facts.slow_cases(report, 5) if one.duration_s >= 1],
        problems=report.problems,
        inline=_inline,
        code=_code,
        fenced=_fenced,
    )
    return text[:_MAX_MARKDOWN_CHARS].rstrip() + "\n"


def _first(case: CaseRecord | None) -> str:
    """Return what a case tells about its culprit, or all that it tells."""
    if case is None:
        return ""
    culprits = facts.story_of(case.text).culprits
    told = culprits[0].text if culprits else case.text
    return told.strip("\n") if told.strip() else ""


def _fenced(text: str) -> str:
    """Return a text as a block of Markdown."""
    # Longer than any run of backquotes inside, which would end the block.
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{clean(shorten(text, _MAX_BLOCK_CHARS))}\n{fence}"


def _inline(text: str) -> str:
    """Return a text as Markdown without any formatting, in one line."""
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A backslash before a mark makes it plain; "@" would call people, and "://" and "www." would make links.
    plain = re.sub(r"([\\`*_\[\]()#|~!])", r"\\\1", plain)
    return plain.replace("@", "&#64;").replace("://", ":&#8203;//").replace("www.", "www&#46;")


def _code(text: str) -> str:
    """Return a text as code, in one line, also inside a table."""
    # Marks count inside of the element, too.
    return f"<code>{_inline(shorten(text, 300))}</code>"
