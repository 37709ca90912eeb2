"""Reads everything that the user names, and makes one report of it. What cannot be read becomes a problem in it."""

from __future__ import annotations

import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from dist_testing.core.ground.errors import ReportError
from dist_testing.report.invocations import read_bazel
from dist_testing.report.model import InvocationRecord, Problem, Report, RunRecord, is_label
from dist_testing.report.run_files import RunFiles, filled_run, is_stream_name, read_cases

# Bazel's folders of the shards and the repeated runs of a target.
_PART = re.compile(r"(?:shard_(?P<shard>\d{1,5})_of_\d+)?_?(?:run_(?P<run>\d{1,5})_of_\d+)?")
# Bazel writes the identity of an event first.
_BUILD_EVENT = re.compile(rb'\{\s*"id"\s*:\s*\{')
# The part of a process of pytest-xdist in the name of a stream.
_WORKER = re.compile(r"\.gw\d+(?=\.)")
# More files than any CI job has; a folder such as / must not keep the command busy for ever.
_MAX_FILES = 100_000
_SNIFFED_BYTES = 64 * 1024
# Folders of a checkout that have no results.
_SKIPPED_FOLDERS = frozenset({".git", "node_modules", "__pycache__", "site-packages"})

_Kind = Literal["build events", "stream", "xml", "other"]


def gather(paths: Sequence[Path], disk_cache: Path | None = None, *, is_brief: bool = False) -> Report:
    """Read results: files of build events, of JUnit's format and of events, and folders with any of these.

    The report has no invocation if nothing could be read. `is_brief` leaves out the ranks of cases that passed.
    """
    gathering = _Gathering(disk_cache, is_brief)
    for path in paths:
        gathering.add(path)
    return gathering.report


class _Gathering:
    def __init__(self, disk_cache: Path | None, is_brief: bool) -> None:
        self._is_brief = is_brief
        self._disk_cache = disk_cache
        self.report = Report()
        # Files that belong to a run already: a folder and the build events of its files may both be named.
        self._known: set[Path] = set()

    def add(self, path: Path) -> None:
        """Add what a path names."""
        try:
            if path.is_dir():
                self._add_folder(path)
            elif path.exists():
                self._add_file(path)
            else:
                raise _nothing(path, "there is no such file or folder")
        except (OSError, ReportError, ValueError) as error:
            if not isinstance(error, ReportError):
                # A folder that this user may not read, or a name that no file can have.
                error = _nothing(path, f"it cannot be read: {error}")
            self._join(Report(problems=(Problem(str(path), str(error).removeprefix(f"{path}: ")),)))

    def _join(self, other: Report) -> None:
        first = len(self.report.invocations)
        self.report = Report(
            (*self.report.invocations, *other.invocations),
            (*self.report.runs, *(replace(run, invocation=run.invocation + first) for run in other.runs)),
            (*self.report.targets, *other.targets),
            (*self.report.not_run, *other.not_run),
            (*self.report.problems, *other.problems),
        )

    def _add_file(self, path: Path) -> None:
        kind = _kind(path)
        if kind == "build events":
            self._add_build_events(path)
        elif kind == "stream" or is_stream_name(path.name):
            self._add_streams([path])
        elif kind == "xml" or path.suffix == ".xml":
            self._join(_of_xml(path, str(path)))
        else:
            raise _nothing(path, "it has neither build events, nor events of a run, nor JUnit's XML")

    def _add_build_events(self, path: Path) -> None:
        report, used = read_bazel(path, self._disk_cache, is_brief=self._is_brief)
        self._known |= used
        self._join(report)

    def _add_folder(self, folder: Path) -> None:
        files = list(_files(folder))
        if len(files) >= _MAX_FILES:
            raise _nothing(folder, f"it has {_MAX_FILES} files or more, too many for a folder of results")
        kinds = {path: _kind(path) for path in files if path.suffix in (".json", ".xml") or is_stream_name(path.name)}
        for path, kind in kinds.items():
            if kind == "build events":
                self._add_build_events(path)
        runs: dict[Path, RunFiles] = {}
        for path in kinds:
            if path.name == "test.xml" and path.resolve() not in self._known:
                outputs = path.parent / "test.outputs"
                runs[path.parent] = RunFiles(
                    path, (), _if_file(outputs / "outputs.zip"), outputs, _if_file(path.parent / "test.log")
                )
        self._join(_of_testlogs(folder, runs, self._is_brief))
        streams: dict[str, list[Path]] = defaultdict(list)
        for path, kind in kinds.items():
            if path.name == "test.xml" or path.parent.name == "test.outputs":
                continue
            if kind == "stream":
                streams[_WORKER.sub("", str(path))].append(path)
            elif kind == "xml" and path.resolve() not in self._known:
                self._join(_of_xml(path, str(path.relative_to(folder))))
        for group in streams.values():
            self._add_streams(group, folder)
        if all(kind == "other" for kind in kinds.values()):
            raise _nothing(folder, "the folder has no results in it")

    def _add_streams(self, paths: Sequence[Path], folder: Path | None = None) -> None:
        shown = _WORKER.sub("", str(paths[0].relative_to(folder) if folder else paths[0]))
        run, problems = filled_run(RunRecord(shown), RunFiles(streams=sorted(paths)), is_brief=self._is_brief)
        began_s = run.began_wall_s
        invocation = InvocationRecord(shown, "pytest", began_s, run.duration_s, is_complete=run.is_complete)
        self._join(Report((invocation,), (run,), problems=tuple(problems)))


def _of_testlogs(folder: Path, runs: dict[Path, RunFiles], is_brief: bool) -> Report:
    """Return a report of the runs in a folder such as bazel-testlogs. They may be of several invocations."""
    if not runs:
        return Report()
    records, problems = [], []
    for place, files in sorted(runs.items()):
        part = _PART.fullmatch(place.name)
        record = RunRecord(
            label_of(place / "test.xml"),
            shard=int((part and part["shard"]) or 1),
            run=int((part and part["run"]) or 1),
        )
        record, found = filled_run(record, files, is_brief=is_brief)
        problems += found
        records.append(record)
    return Report((InvocationRecord(str(folder), "bazel test"),), tuple(records), problems=tuple(problems))


def _of_xml(path: Path, shown: str) -> Report:
    """Return a report of a single file in JUnit's format, of any program."""
    runs = [
        RunRecord(
            suite.name if is_label(suite.name) else shown,
            duration_s=sum(case.duration_s for case in suite.cases),
            cases=tuple(suite.cases),
        )
        for suite in read_cases(path)
    ]
    return Report((InvocationRecord(shown, "tests"),), tuple(runs))


def label_of(path: Path) -> str:
    """Return the label of the target whose test.xml lies at a path in Bazel's testlogs; else the path itself."""
    parts = path.resolve().parent.parts
    if parts and _PART.fullmatch(parts[-1]):
        parts = parts[:-1]
    if "testlogs" not in parts:
        return str(path)
    start = len(parts) - parts[::-1].index("testlogs")
    *package, name = parts[start:] or ("",)
    return f"//{'/'.join(package)}:{name}"


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without the links to folders below it, which may form circles."""
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        for name in sorted(names):
            yield Path(root, name)
            count += 1
            if count >= _MAX_FILES:
                return


def _if_file(path: Path) -> Path | None:
    return path if path.is_file() else None


def _kind(path: Path) -> _Kind:
    """Tell what a file holds from its beginning."""
    try:
        if not path.is_file():
            return "other"
        with path.open("rb") as file:
            start = file.read(_SNIFFED_BYTES)
    except OSError:
        return "other"
    if start.startswith(b"\x1f\x8b"):
        try:
            start = zlib.decompressobj(31).decompress(start, _SNIFFED_BYTES)
        except zlib.error:
            start = b""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"<"):
        return "xml"
    if is_stream_name(path.name) or text.startswith(b'{"event"'):
        return "stream"
    return "build events" if _BUILD_EVENT.match(text) else "other"


def _nothing(path: Path, why: str) -> ReportError:
    return ReportError(
        f"{path}: {why}.\n"
        "Results are files of build events (--build_event_json_file), event streams (--dist-events), files in JUnit's "
        "format, and folders with them, such as bazel-testlogs.\n"
        "Run the tests first, and name one of these."
    )
