"""Writes the files of a report, each in one step: a reader sees all of it or nothing."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dist_testing.core.bazel.junit import XmlSuite, write_suites
from dist_testing.core.ground.errors import ReportError
from dist_testing.report.facts import final_runs
from dist_testing.report.model import Report, RunRecord
from dist_testing.report.perfetto import trace
from dist_testing.report.words import slug


def write_text(path: Path, text: str) -> int:
    """Write a text, and return its size in bytes."""
    return write_bytes(path, text.encode("utf-8", errors="replace"))


def write_bytes(path: Path, content: bytes) -> int:
    """Write a file, and return its size in bytes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _writing(path):
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    return len(content)


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
    groups: dict[str, list[RunRecord]] = {}
    for run in report.runs:
        if run.wall_zero_s is not None:
            groups.setdefault(f"invocation-{run.invocation + 1}", []).append(run)
            groups.setdefault(slug(run.target) or "target", []).append(run)
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
