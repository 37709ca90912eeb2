"""Reads the files that one run of a target has left: test.xml, event streams, logs; in folders or packed by Bazel."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dist_testing.core.bazel.junit import XmlSuite, read_xml
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import BAD, STATUSES, CaseRecord
from dist_testing.report.model import LogRecord, Problem, RunRecord, bounded, is_label
from dist_testing.report.streams import StreamRecord, read_streams

# Name of an event stream, and the part of a process of pytest-xdist in it: "events.gw0.jsonl.gz".
_STREAM = re.compile(r".+\.jsonl(\.gz)?")
_PACKED_STREAM = re.compile(r"events(\.gw\d+)?\.jsonl(\.gz)?")
_RANK_LOG = re.compile(r".+\.rank-\d+\.log")
# About 100,000 cases. A larger file would take minutes and gigabytes.
_MAX_XML_BYTES = 128 << 20
# Of a log, the head and the tail are kept. Characters.
_MAX_LOG_CHARS = 64 * 1024
# Logs of one run in the report: those of the first few failures. The others are listed with their places.
_MAX_LOGS = 24
# A file of an archive is unpacked up to this size, because a small archive can be enormous. Bytes.
_MAX_MEMBER_BYTES = 192 << 20


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of one run."""

    xml: Path | None = None  # its test.xml; None if there is none
    streams: Sequence[Path] = ()  # its event streams
    archive: Path | None = None  # the archive of its undeclared outputs; None if there is none
    folder: Path | None = None  # the folder of its undeclared outputs; None if there is none
    log: Path | None = None  # its test.log; None if there is none


def is_stream_name(name: str) -> bool:
    """Return whether a file of this name may be an event stream."""
    return _STREAM.fullmatch(name) is not None


def filled_run(run: RunRecord, files: RunFiles, *, is_brief: bool) -> tuple[RunRecord, list[Problem]]:
    """Return a run, of which `run` is known without its files, with what the files say; and what is wrong with them."""
    subject = f"{run.target}{run.in_part}"
    problems: list[Problem] = []
    from_xml = []
    has_results = False
    if files.xml is not None:
        try:
            from_xml = [case for suite in read_cases(files.xml) for case in suite.cases]
            has_results = True
        except ReportError as error:
            problems.append(Problem(subject, str(error)))
    with contextlib.ExitStack() as stack:
        try:
            unpacked = stack.enter_context(_packed_files(files.archive)) if files.archive else []
        except ReportError as error:
            unpacked = []
            problems.append(Problem(subject, str(error)))
        beside = sorted(files.folder.iterdir()) if files.folder is not None and files.folder.is_dir() else []
        outputs = [*unpacked, *beside]
        streams = [*files.streams, *[path for path in outputs if _PACKED_STREAM.fullmatch(path.name)]]
        stream = (
            read_streams([(path, _shown(subject, path)) for path in streams], is_brief=is_brief) if streams else None
        )
        if stream is not None:
            problems += stream.problems
            has_results = has_results or bool(stream.cases) or stream.is_complete
            target = stream.first.target if stream.first is not None else ""
            if not is_label(run.target):
                # Outside Bazel's testlogs the stream itself knows the target, if there is one.
                run = replace(run, target=target or run.target)
            elif target and target.lstrip("@") != run.target.lstrip("@"):
                problems.append(_foreign(subject, target, run.target))
                stream = None
        merged, contradictions = _merged(from_xml, _cases(stream, run.shard) if stream else (), subject)
        problems += contradictions
        run = replace(run, cases=merged, has_results=has_results)
        if stream is not None:
            run = _with_stream(run, stream)
        if run.is_bad:
            run = replace(run, logs=tuple(_logs(files, outputs, problems, subject)))
    return run, problems


def read_cases(path: Path) -> list[XmlSuite]:
    """Read a file in JUnit's format."""
    with contextlib.suppress(OSError):
        if (size := path.stat().st_size) > _MAX_XML_BYTES:
            raise ReportError(
                f"{path}: {size >> 20} MiB; at most {_MAX_XML_BYTES >> 20} MiB are read.\n"
                "A test has put much output into its result.\n"
                "Leave the file out, or run the target with less output."
            )
    return read_xml(path)


def _merged(
    from_xml: Sequence[CaseRecord], from_stream: Sequence[CaseRecord], subject: str
) -> tuple[tuple[CaseRecord, ...], list[Problem]]:
    """Put the cases of a run together. The stream counts; at a contradiction the worse status does."""
    if not from_stream:
        return tuple(from_xml), []
    by_name: dict[str, list[CaseRecord]] = {}
    for case in from_xml:
        by_name.setdefault(case.name, []).append(case)
    merged: list[CaseRecord] = []
    contradicting: list[str] = []
    for case in from_stream:
        told = by_name.pop(case.name, [])
        worst = min(told, key=lambda one: STATUSES.index(one.status), default=None)
        if worst is None:
            merged.append(case)
            continue
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


def _shown(subject: str, stream: Path) -> str:
    # Outside Bazel the subject is the file itself.
    return subject if subject.endswith(stream.name) else f"{subject}, {stream.name}"


def _cases(stream: StreamRecord, shard: int) -> list[CaseRecord]:
    """Return the cases of a shard. What every shard skips as a whole is a case of the first one, as in the test.xml."""
    cases = stream.cases.values()
    return [case for case in cases if shard == 1 or case.when != "collect" or case.status != "skipped"]


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
        to_come=stream.to_come,
        is_complete=run.is_complete and stream.is_complete,
        began_wall_s=first.wall_zero_s + began_at_s if run.began_wall_s is None else run.began_wall_s,
        duration_s=run.duration_s or bounded(max(stream.times) - began_at_s),
    )


def _foreign(subject: str, found: str, target: str) -> Problem:
    return Problem(
        subject,
        f"the event stream is of {found!r:.200}, and not of {target}.\n"
        "The files of two runs were mixed, or the target was renamed.\n"
        "The stream is left out. Run the target again.",
    )


def _logs(files: RunFiles, outputs: Sequence[Path], problems: list[Problem], subject: str) -> Iterator[LogRecord]:
    paths = [path for path in outputs if _RANK_LOG.fullmatch(path.name)]
    if files.log is not None:
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
            yield LogRecord(path.name, text, str(files.archive if is_packed else path))


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


@contextlib.contextmanager
def _packed_files(archive: Path) -> Iterator[list[Path]]:
    """Unpack event streams and the logs of ranks from the archive of a run into a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="dist-report-") as folder:
        try:
            unpacked = list(_unpacked(archive, Path(folder)))
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise ReportError(
                f"{archive}: the undeclared outputs cannot be unpacked: {error}.\n"
                "The archive was cut off, or another program has written it.\n"
                "Run the target again; its test.xml is still read."
            ) from error
        yield unpacked


def _unpacked(archive: Path, folder: Path) -> Iterator[Path]:
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
