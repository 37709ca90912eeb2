"""Reads the files that one run of a target has left: test.xml, event streams, logs; in folders or packed by Bazel."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dist_testing.core.events.event import (
    CaseEnded,
    CaseRecorded,
    CaseStarted,
    Event,
    RunEnded,
    RunStarted,
    StreamCut,
    TestsCollected,
)
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import BAD, STATUSES, CaseRecord, case_name
from dist_testing.event_file import iterate_events
from dist_testing.report.model import LogRecord, Problem, RunFiles, RunRecord, bounded, is_label
from dist_testing.report.result_xml import read_xml
from dist_testing.report.words import grouped

# Name of a target's event stream, and the part of a process of pytest-xdist in it: "events.gw0.jsonl.gz".
_PACKED_STREAM = re.compile(r"events(\.gw\d+)?\.jsonl(\.gz)?")
_RANK_LOG = re.compile(r".+\.rank-\d+\.log")
# Of a log, the head and the tail are kept. Characters.
_MAX_LOG_CHARS = 64 * 1024
# Logs of one run in the report: those of the first few failures. The others are listed with their places.
_MAX_LOGS = 24
# A file of an archive is unpacked up to this size, because a small archive can be enormous. Bytes.
_MAX_MEMBER_BYTES = 192 << 20


def filled_run(run: RunRecord, files: RunFiles, *, is_brief: bool) -> tuple[RunRecord, list[Problem]]:
    """Return a run, of which `run` is known without its files, with what the files say; and what is wrong with them."""
    subject = f"{run.target}{run.in_part}"
    problems: list[Problem] = []
    from_xml: list[CaseRecord] = []
    has_results = False
    if files.xml is not None:
        try:
            from_xml = [case for suite in read_xml(files.xml) for case in suite.cases]
            has_results = True
        except ReportError as error:
            problems.append(Problem(subject, str(error)))
    packed = files.archive or (files.folder / "outputs.zip" if files.folder is not None else None)
    with contextlib.ExitStack() as stack:
        outputs: list[Path] = []
        if packed is not None and packed.is_file():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dist-report-"))
            try:
                outputs = list(_unpacked(packed, Path(folder)))
            except ReportError as error:
                problems.append(Problem(subject, str(error)))
        if files.folder is not None and files.folder.is_dir():
            outputs += sorted(files.folder.iterdir())
        streams = [*files.streams, *[path for path in outputs if _PACKED_STREAM.fullmatch(path.name)]]
        stream = None
        if streams:
            stream = read_streams(streams, subject, is_brief=is_brief)
            problems += stream.problems
            has_results = has_results or bool(stream.cases) or stream.is_complete
            target = stream.first.target if stream.first is not None else ""
            if not is_label(run.target):
                # Outside Bazel's testlogs the stream itself knows the target, if there is one.
                run = replace(run, target=target or run.target)
            elif target and target.lstrip("@") != run.target.lstrip("@"):
                why = (
                    f"the event stream is of {target!r:.200}, and not of {run.target}.\n"
                    "The files of two runs were mixed, or the target was renamed.\n"
                    "The stream is left out. Run the target again."
                )
                problems.append(Problem(subject, why))
                stream = None
        told = stream.cases.values() if stream is not None else ()
        # What every shard skips as a whole is a case of the first one, as in the test.xml.
        own = [case for case in told if run.shard == 1 or case.when != "collect" or case.status != "skipped"]
        cases, contradictions = _merged(from_xml, own, subject)
        problems += contradictions
        run = replace(run, cases=cases, has_results=has_results)
        if stream is not None:
            run = _with_stream(run, stream)
        if run.is_bad:
            run = replace(run, logs=tuple(_logs(files, packed, outputs, problems, subject)))
    return run, problems


def _merged(
    from_xml: Sequence[CaseRecord], from_stream: Sequence[CaseRecord], subject: str
) -> tuple[tuple[CaseRecord, ...], list[Problem]]:
    """Put the cases of a run together. The stream counts; at a contradiction the worse status does."""
    if not from_stream:
        return tuple(from_xml), []
    by_name = grouped((case.name, case) for case in from_xml)
    merged: list[CaseRecord] = []
    contradicting: list[str] = []
    for case in from_stream:
        worst = min(by_name.pop(case.name, [case]), key=lambda one: STATUSES.index(one.status))
        if (worst.status in BAD) != (case.status in BAD):
            contradicting.append(f"{case.name}: {case.status} by the event stream, {worst.status} by the test.xml")
            if worst.status in BAD:
                case = replace(case, status=worst.status, message=worst.message, text=worst.text, cause=worst.cause)
        elif not case.text and worst.text:
            case = replace(case, text=worst.text)
        merged.append(case)
    merged += [case for cases in by_name.values() for case in cases]
    if not contradicting:
        return tuple(merged), []
    more = f"; and {len(contradicting) - 3} more" if len(contradicting) > 3 else ""
    text = (
        f"the event stream and the test.xml contradict each other: {'; '.join(contradicting[:3])}{more}.\n"
        "They are of different runs, or a program has changed one of them.\n"
        "The worse result counts here. Run the target again to know."
    )
    return tuple(merged), [Problem(subject, text)]


def _with_stream(run: RunRecord, stream: StreamRecord) -> RunRecord:
    first = stream.first
    if first is None:
        return replace(run, is_complete=False)
    began_at_s = min(stream.times)
    return replace(
        run,
        wall_zero_s=first.wall_zero_s,
        backend=first.backend,
        versions=first.versions or {},
        # Bazel does not know the name of a remote worker.
        host=run.host or first.host,
        to_come=max(0, stream.collected - len(stream.begun)),
        is_complete=run.is_complete and stream.is_complete,
        exit_code=stream.exit_code,
        began_wall_s=first.wall_zero_s + began_at_s if run.began_wall_s is None else run.began_wall_s,
        duration_s=run.duration_s or bounded(max(stream.times) - began_at_s),
    )


def _logs(
    files: RunFiles, packed: Path | None, outputs: Sequence[Path], problems: list[Problem], subject: str
) -> Iterator[LogRecord]:
    paths = [path for path in outputs if _RANK_LOG.fullmatch(path.name)]
    if files.log is not None and files.log.is_file():
        paths.insert(0, files.log)
    for number, path in enumerate(paths):
        is_packed = path != files.log and path.parent != files.folder
        try:
            text = _log_text(path) if number < _MAX_LOGS else ""
        except OSError as error:
            told = (
                f"the log {path.name} cannot be read: {error.strerror}.\n"
                "A later run or a clean-up has removed it.\n"
                "Run the target again; the results themselves are complete."
            )
            problems.append(Problem(subject, told))
        else:
            yield LogRecord(path.name, text, str(packed if is_packed else path))


def _log_text(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= 4 * _MAX_LOG_CHARS:
            data = file.read()
        else:
            head = file.read(2 * _MAX_LOG_CHARS)
            file.seek(-2 * _MAX_LOG_CHARS, 2)
            data = head + f"\n... {size - 4 * _MAX_LOG_CHARS} bytes left out ...\n".encode() + file.read()
    return shorten(data.decode("utf-8", errors="replace"), _MAX_LOG_CHARS)


def _unpacked(archive: Path, folder: Path) -> Iterator[Path]:
    """Unpack event streams and the logs of ranks from the archive of a run into a folder, and yield the files."""
    try:
        with zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                name = member.filename.rpartition("/")[2]
                if not (_PACKED_STREAM.fullmatch(name) or _RANK_LOG.fullmatch(name)) or len(name.encode()) > 255:
                    continue
                if member.file_size > _MAX_MEMBER_BYTES:
                    raise ReportError(
                        f"{archive}: {name} has {member.file_size >> 20} MiB.\n"
                        f"dist_testing writes at most {_MAX_MEMBER_BYTES >> 20} MiB, so this is another file.\n"
                        "Leave the archive out."
                    )
                path = folder / name
                # Python reads no more of a member than the size that the archive tells.
                with packed.open(member) as source, path.open("wb") as target:
                    shutil.copyfileobj(source, target)
                yield path
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ReportError(
            f"{archive}: the undeclared outputs cannot be unpacked: {error}.\n"
            "The archive was cut off, or another program has written it.\n"
            "Run the target again; its test.xml is still read."
        ) from error


@dataclass(slots=True)
class StreamRecord:
    """What the event streams of one run say."""

    first: RunStarted | None = None  # the first event; None if there is none
    # Node id to record, in the order in which the cases began. Those of files are of what pytest could not collect, or
    # skipped as a whole.
    cases: dict[str, CaseRecord] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)  # the cases that began
    ended: set[str] = field(default_factory=set)  # the cases that came to their end
    collected: int = 0  # number of tests that were to run
    is_complete: bool = True  # whether the run came to its end, by each file
    exit_code: int | None = None  # its exit status; None if unknown
    times: list[float] = field(default_factory=list)  # time of the first and of the last event of each file
    problems: list[Problem] = field(default_factory=list)  # what could not be read, and what does not fit together

    def take(self, event: Event) -> None:
        """Take an event of one of the files."""
        match event:
            case CaseRecorded(record=record):
                # The controller of pytest-xdist has a record without ranks of each case of its workers.
                known = self.cases.get(record.nodeid)
                if known is None or record.ranks or not known.ranks:
                    self.cases[record.nodeid] = record
            case CaseStarted():
                self.begun.add(event.nodeid)
                self.cases.setdefault(event.nodeid, _unfinished(event.nodeid, event.at_s))
            case CaseEnded():
                self.ended.add(event.nodeid)
            case TestsCollected():
                self.collected = max(self.collected, event.count)


def _unfinished(nodeid: str, began_at_s: float | None) -> CaseRecord:
    message = "the run ended before the test did"
    return CaseRecord(case_name(nodeid), "unfinished", nodeid, message=message, began_at_s=began_at_s)


def read_streams(paths: Sequence[Path], subject: str, *, is_brief: bool = False) -> StreamRecord:
    """Read the event streams of one run, which is the subject of problems. What stands before damage counts."""
    read = StreamRecord()
    for path in paths:
        told = []
        first = last = None
        try:
            for event in iterate_events(path, is_brief=is_brief):
                first, last = first or event, event
                read.take(event)
        except ReportError as error:
            told.append(str(error).replace(f"{path}: ", "", 1))
        read.is_complete &= isinstance(last, RunEnded)
        if isinstance(last, RunEnded):
            # The name of pytest-xdist's controller, which decides, comes after those of its workers.
            read.exit_code = last.exit_code
        if isinstance(first, RunStarted) and last is not None:
            read.times += [first.at_s, last.at_s]
            read.first = read.first or first
            if isinstance(last, StreamCut):
                told.append(f"the file was full at {last.limit_bytes} bytes, so later events are missing")
            elif not isinstance(last, RunEnded):
                told.append("the run did not come to its end: it was killed, or its last events are missing")
            if first.target != read.first.target:
                told.append(f"the file is of {first.target!r}, the others are of {read.first.target!r}")
        # Outside Bazel the subject is the file itself.
        shown = subject if subject.endswith(path.name) else f"{subject}, {path.name}"
        read.problems += [Problem(shown, text) for text in told]
    for nodeid, case in read.cases.items():
        # The file was cut off before the end of its teardown.
        if case.status == "passed" and nodeid not in read.ended:
            read.cases[nodeid] = replace(_unfinished(nodeid, case.began_at_s), ranks=case.ranks)
    return read
