"""Reads the files that one run of a target has left: test.xml, event streams, logs; in folders or packed by Bazel."""

from __future__ import annotations

import contextlib
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import CaseRecord
from dist_testing.report.model import LogRecord, Problem, RunRecord, bounded, is_label
from dist_testing.report.streams import StreamRecord, read_streams
from dist_testing.report.xml_cases import merge_cases, read_cases

# Name of an event stream, and the part of a process of pytest-xdist in it: "events.gw0.jsonl.gz".
_STREAM = re.compile(r".+\.jsonl(\.gz)?")
_PACKED_STREAM = re.compile(r"events(\.gw\d+)?\.jsonl(\.gz)?")
_RANK_LOG = re.compile(r".+\.rank-\d+\.log")
# Of a log, the head and the tail are kept. Characters.
_MAX_LOG_CHARS = 64 * 1024
# Logs of one run in the report: those of the first few failures. The others are listed with their places.
_MAX_LOGS = 24
# A file of an archive is unpacked up to this size, because a small archive can be enormous. Bytes.
_MAX_MEMBER_BYTES = 192 << 20
_PART_BYTES = 1 << 20


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
        merged, contradictions = merge_cases(from_xml, _cases(stream, run.shard) if stream else (), subject)
        problems += contradictions
        run = replace(run, cases=merged, has_results=has_results)
        if stream is not None:
            run = _with_stream(run, stream)
        if run.is_bad:
            run = replace(run, logs=tuple(_logs(files, outputs, problems, subject)))
    return run, problems


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
        is_packed = files.archive is not None and path.parent not in (files.folder, getattr(files.log, "parent", None))
        place = str(files.archive if is_packed else path)
        if number >= _MAX_LOGS:
            yield LogRecord(path.name, "", place)
            continue
        try:
            yield LogRecord(path.name, _log_text(path), place)
        except OSError as error:
            problems.append(
                Problem(
                    subject,
                    f"the log {path.name} cannot be read: {error.strerror}.\n"
                    "A later run or a clean-up has removed it.\n"
                    "Run the target again; the results themselves are complete.",
                )
            )


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
            with packed.open(member) as source, path.open("wb") as target:
                left = _MAX_MEMBER_BYTES
                while left > 0 and (data := source.read(_PART_BYTES)):
                    target.write(data)
                    left -= len(data)
            yield path
