"""Writes the files of a report, each in one step: a reader sees all of it or nothing.

Two are for other programs: JSON with a published schema, and CTRF.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dist_testing.core.bazel.junit import XmlSuite, write_suites
from dist_testing.core.ground.codec import shape_of
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import BAD
from dist_testing.core.ground.whole_file import whole_file
from dist_testing.report.facts import final_runs, last_passes, ledger, status_counts
from dist_testing.report.model import Report, RunRecord
from dist_testing.report.perfetto import trace
from dist_testing.report.words import grouped, slug

# Increase it when a field is removed or changes its meaning. Readers leave out fields that they do not know.
_SCHEMA = 2
SCHEMA_FILE = Path(__file__).parent / "report.schema.json"
_MAX_TEXT_CHARS = 64 * 1024


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
        write_suites(path, [XmlSuite(f"{run.target}{run.in_part}", run.cases) for run in final_runs(report)])
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
    """Have an OSError become a ReportError."""
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
    written = write(replace(report, not_run=tuple(ledger(report))))
    for run in written["runs"]:
        del run["logs"]
    data = {"schema": _SCHEMA, "counts": dict(status_counts(report)), **written}
    return json.dumps(data, indent=1, allow_nan=False, default=str) + "\n"


def ctrf(report: Report) -> str:
    """Return the report in the Common Test Report Format (ctrf.io)."""
    tests = []
    counts: Counter[str] = Counter()
    passes = last_passes(report)
    flaky = {run.action for run in report.runs if passes.get(run.action, 0) > run.attempt}
    for run in final_runs(report):
        for case in run.cases:
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
