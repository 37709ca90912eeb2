"""Reads everything that the user names, and makes one report of it. What cannot be read becomes a problem in it."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from dist_testing.core.ground.errors import ReportError
from dist_testing.report.build_events import Invocation, read_invocation
from dist_testing.report.model import InvocationRecord, NotRun, Problem, Report, RunFiles, RunRecord, is_label
from dist_testing.report.result_xml import read_xml
from dist_testing.report.run_files import filled_run
from dist_testing.report.words import grouped

# Bazel's folders of the shards and the repeated runs of a target.
_PART = re.compile(r"(?:shard_(?P<shard>\d{1,5})_of_\d+)?_?(?:run_(?P<run>\d{1,5})_of_\d+)?")
# Folders beside the test.xml of a target, with its undeclared outputs and its earlier attempts.
_PARTS_OF_TARGETS = ("test.outputs", "test_attempts")
# Bazel writes the identity of an event first.
_BUILD_EVENT = re.compile(rb'\{\s*"id"\s*:\s*\{')
# The name of an event stream, and the part of a process of pytest-xdist in it.
_STREAM = re.compile(r".+\.jsonl(\.gz)?")
_WORKER = re.compile(r"\.gw\d+(?=\.)")
# More files than any CI job has; a folder such as / must not keep the command busy forever.
_MAX_FILES = 100_000
_SNIFFED_BYTES = 64 * 1024
# Folders of a checkout that have no results.
_SKIPPED_FOLDERS = frozenset({".git", "node_modules", "__pycache__", "site-packages"})
# A file that is younger than the end of the invocation is of a later run. Clocks of file systems differ. Seconds.
_CLOCK_S = 10.0
_NOT_REACHED = ("NO_STATUS", "INCOMPLETE")

_Kind = Literal["build events", "stream", "xml", "other"]


def gather(paths: Sequence[Path], disk_cache: Path | None = None, *, is_brief: bool = False) -> Report:
    """Read results: files of build events, of JUnit's format and of events, and folders with any of these.

    The report has no invocation if nothing could be read. `is_brief` leaves out the ranks of cases that passed.
    """
    gathering = _Gathering(disk_cache, is_brief)
    # `events*.jsonl` names the streams of all processes of one run of pytest-xdist.
    for group in grouped((_WORKER.sub("", str(path)), path) for path in paths).values():
        gathering.add(group)
    return gathering.report


@dataclass(slots=True)
class _Gathering:
    _disk_cache: Path | None
    _is_brief: bool
    _invocations: list[InvocationRecord] = field(default_factory=list)
    _runs: list[RunRecord] = field(default_factory=list)
    _targets: list[str] = field(default_factory=list)
    _not_run: list[NotRun] = field(default_factory=list)
    _problems: list[Problem] = field(default_factory=list)
    # Files that belong to a run already: a folder, a file in it, and the build events of its files may all be named.
    _known: set[str] = field(default_factory=set)

    @property
    def report(self) -> Report:
        return Report(
            tuple(self._invocations),
            tuple(self._runs),
            tuple(self._targets),
            tuple(self._not_run),
            tuple(self._problems),
        )

    def add(self, paths: Sequence[Path]) -> None:
        """Add files and folders. Event streams among them are of one run."""
        streams = []
        for path in paths:
            with self._noting_problems(path):
                if path.is_dir():
                    self._add_folder(path)
                elif not path.exists():
                    raise _nothing(path, "there is no such file or folder")
                elif (kind := _kind(path)) == "other":
                    raise _nothing(path, "it has neither build events, nor events of a run, nor JUnit's XML")
                elif not self._is_new(path):
                    continue
                elif kind == "build events":
                    self._add_build_events(path)
                elif kind == "stream":
                    streams.append(path)
                else:
                    self._add_xml(path, str(path))
        if streams:
            with self._noting_problems(streams[0]):
                self._add_streams(streams)

    def _is_new(self, path: Path) -> bool:
        """Return whether a file was not read before; from now on it was."""
        place = _place(path)
        is_new = place not in self._known
        self._known.add(place)
        return is_new

    @contextlib.contextmanager
    def _noting_problems(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, ReportError, ValueError) as error:
            if not isinstance(error, ReportError):
                # A folder that this user may not read, or a name that no file can have.
                error = _nothing(path, f"it cannot be read: {error}")
            self._problems.append(Problem(str(path), str(error).removeprefix(f"{path}: ")))

    def _note_unreadable(self, error: OSError) -> None:
        with self._noting_problems(Path(error.filename)):
            raise error

    def _add_folder(self, folder: Path) -> None:
        files = list(itertools.islice(_files(folder, self._note_unreadable), _MAX_FILES))
        if len(files) == _MAX_FILES:
            raise _nothing(folder, f"it has {_MAX_FILES} files or more, too many for a folder of results")
        kinds = {
            path: _kind(path) for path in files if path.suffix in (".json", ".xml") or _STREAM.fullmatch(path.name)
        }
        for path, kind in kinds.items():
            if kind == "build events" and self._is_new(path):
                with self._noting_problems(path):
                    self._add_build_events(path)
        if places := [path.parent for path in kinds if path.name == "test.xml" and self._is_new(path)]:
            self._add_testlogs(folder, places)
        streams: dict[str, list[Path]] = defaultdict(list)
        for path, kind in kinds.items():
            is_part = path.parent.name in _PARTS_OF_TARGETS and path.parent.with_name("test.xml") in kinds
            if path.name == "test.xml" or is_part or kind not in ("stream", "xml") or not self._is_new(path):
                continue
            if kind == "stream":
                streams[_WORKER.sub("", str(path))].append(path)
            else:
                with self._noting_problems(path):
                    self._add_xml(path, str(path.relative_to(folder)))
        for group in streams.values():
            self._add_streams(group, folder)
        if all(kind == "other" for kind in kinds.values()):
            raise _nothing(folder, "the folder has no results in it")

    def _add_run(self, run: RunRecord, files: RunFiles) -> RunRecord:
        """Add a run of the last invocation, with what its files say."""
        run = replace(run, invocation=len(self._invocations) - 1)
        run, problems = filled_run(run, files, is_brief=self._is_brief)
        self._runs.append(run)
        self._problems += problems
        return run

    def _add_build_events(self, path: Path) -> None:
        invocation = read_invocation(path, self._disk_cache)
        self._known |= {_place(one.files.xml) for one in invocation.attempts if one.files.xml is not None}
        self._invocations.append(invocation)
        self._targets += sorted({*invocation.summaries, *invocation.broken})
        self._not_run += _not_run(invocation)
        if not invocation.is_complete:
            told = (
                f"the build events are incomplete after {len(invocation.attempts)} results.\n"
                "Bazel was killed, could not write them, or still runs.\n"
                "The report has what there is; results may be missing."
            )
            self._problems.append(Problem(invocation.name, told))
        ended_s = math.inf
        if invocation.began_wall_s is not None and invocation.duration_s:
            ended_s = invocation.began_wall_s + invocation.duration_s
        for attempt in invocation.attempts:
            xml, uri = attempt.files.xml, attempt.xml_uri
            # A digest proves which run a file is of, whenever it was fetched; Python cannot compute BLAKE3.
            is_proven = not uri.startswith("file:") and "/blake3/" not in uri
            is_stale = xml is not None and not is_proven and xml.stat().st_mtime > ended_s + _CLOCK_S
            run = self._add_run(attempt, RunFiles() if is_stale else attempt.files)
            if is_stale:
                told = (
                    "a later run has replaced its test.xml, so its cases are unknown.\n"
                    "Bazel keeps only the files of the last run of a target on this machine.\n"
                    "Make the report right after the invocation, or keep a copy of bazel-testlogs."
                )
                self._problems.append(Problem(attempt.target, told))
            elif xml is None and not run.has_results:
                self._problems.append(Problem(f"{run.target}{run.in_part}", _without_xml(attempt.xml_uri)))

    def _add_testlogs(self, folder: Path, places: Sequence[Path]) -> None:
        """Add the runs whose files lie in these places of a folder such as bazel-testlogs, of any invocations."""
        self._invocations.append(InvocationRecord(str(folder), "bazel test"))
        for place in sorted(places):
            xml = place / "test.xml"
            part = _PART.fullmatch(place.name)
            shard, number = (int((part and part[name]) or 1) for name in ("shard", "run"))
            # "attempt_1.xml" and so on. The last attempt has the usual files.
            earlier = len(list(place.glob("test_attempts/attempt_*.xml")))
            label = label_of(xml)
            for attempt in range(1, earlier + 1):
                path = place / "test_attempts" / f"attempt_{attempt}.xml"
                self._add_run(RunRecord(label, shard, number, attempt), RunFiles(path, log=path.with_suffix(".log")))
            files = RunFiles(xml, folder=place / "test.outputs", log=place / "test.log")
            self._add_run(RunRecord(label, shard, number, earlier + 1), files)

    def _add_streams(self, paths: Sequence[Path], folder: Path | None = None) -> None:
        shown = _WORKER.sub("", str(paths[0].relative_to(folder) if folder else paths[0]))
        self._invocations.append(InvocationRecord(shown, "pytest"))
        run = self._add_run(RunRecord(shown), RunFiles(streams=sorted(paths)))
        self._invocations[-1] = InvocationRecord(
            shown, "pytest", run.began_wall_s, run.duration_s, run.exit_code, is_complete=run.is_complete
        )

    def _add_xml(self, path: Path, shown: str) -> None:
        suites = read_xml(path)
        self._invocations.append(InvocationRecord(shown, "tests"))
        for suite in suites:
            run = RunRecord(
                suite.name if is_label(suite.name) else shown,
                invocation=len(self._invocations) - 1,
                began_wall_s=suite.began_wall_s,
                duration_s=sum(case.duration_s for case in suite.cases),
                cases=tuple(suite.cases),
            )
            self._runs.append(run)


def _not_run(invocation: Invocation) -> Iterator[NotRun]:
    for label in invocation.incompatible:
        yield NotRun("incompatible", label, "", "not for this platform or its GPUs, so Bazel did not run it", 0)
    for label, message in sorted({**invocation.unknown, **invocation.broken}.items()):
        yield NotRun("not built", label, "", message.partition("\n")[0] or "it could not be built", 0)
    for label, status in sorted(invocation.summaries.items()):
        if status in _NOT_REACHED and label not in invocation.broken:
            yield NotRun("not reached", label, "", "Bazel ended before the target ran", 0)


def _without_xml(uri: str) -> str:
    """Return why the cases of a run are unknown, whose test.xml has this address."""
    unknown = ", so its cases are unknown.\n"
    if not uri:
        return (
            f"it has left no test.xml{unknown}"
            "The test or its worker ended before Bazel could write the file.\n"
            "Its log may tell why; run the target again."
        )
    if uri.startswith("file:"):
        return (
            f"its test.xml is not on this machine{unknown}"
            "It was removed, or the build events are of another machine.\n"
            "Make the report where Bazel ran, right after the invocation; --disk-cache=DIR names a cache to look into."
        )
    return (
        f"its test.xml is not on this machine{unknown}"
        "Bazel left it on the remote cache (--remote_download_minimal), or it was removed.\n"
        "--remote_download_outputs=toplevel fetches the results of tests, and so does --config=ci; "
        "--disk-cache=DIR names a cache to look into."
    )


def label_of(path: Path) -> str:
    """Return the label of the target whose test.xml lies at a path in Bazel's testlogs; else the path itself."""
    parts = Path(os.path.realpath(path)).parent.parts
    if parts and _PART.fullmatch(parts[-1]):
        parts = parts[:-1]
    if "testlogs" not in parts:
        return str(path)
    start = len(parts) - parts[::-1].index("testlogs")
    *package, name = parts[start:] or ("",)
    repository = ""
    if len(package) > 1 and package[0] == "external":
        repository, package = f"@@{package[1]}", package[2:]
    return f"{repository}//{'/'.join(package)}:{name}"


def _place(path: Path) -> str:
    """Return what a file is known by. Its folder may be reached by links, as bazel-testlogs is."""
    # Not resolved itself: equal files of two shards may be links to one file of a store.
    return os.path.join(os.path.realpath(path.parent), path.name)


def _files(folder: Path, onerror: Callable[[OSError], None]) -> Iterator[Path]:
    """Yield the files below a folder, without the links to folders below it, which may form circles."""
    for root, folders, names in os.walk(folder, onerror=onerror):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        yield from (Path(root, name) for name in sorted(names))


def _kind(path: Path) -> _Kind:
    """Tell what a file holds from its beginning."""
    start = b""
    # Of a file that cannot be read, or is empty, the name tells.
    with contextlib.suppress(OSError):
        if not path.is_file():
            return "other"
        with path.open("rb") as file:
            start = file.read(_SNIFFED_BYTES)
    if start.startswith(b"\x1f\x8b"):
        try:
            start = zlib.decompressobj(31).decompress(start, _SNIFFED_BYTES)
        except zlib.error:
            start = b""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"<"):
        return "xml"
    if _STREAM.fullmatch(path.name) or text.startswith(b'{"event"'):
        return "stream"
    return "build events" if _BUILD_EVENT.match(text) else "xml" if path.suffix == ".xml" else "other"


def _nothing(path: Path, why: str) -> ReportError:
    return ReportError(
        f"{path}: {why}.\n"
        "Results are files of build events (--build_event_json_file), event streams (--dist-events), files in JUnit's "
        "format, and folders with them, such as bazel-testlogs.\n"
        "Run the tests first, and name one of these."
    )
