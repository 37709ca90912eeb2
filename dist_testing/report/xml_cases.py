"""Makes the cases of a run from its test.xml, and puts them together with those of its event stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dist_testing.core.bazel.junit import XmlSuite, read_xml
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import BAD, STATUSES, CaseRecord
from dist_testing.report.model import Problem

# About 100,000 cases. A larger file would take minutes and gigabytes.
_MAX_XML_BYTES = 128 << 20


def read_cases(path: Path) -> list[XmlSuite]:
    """Read a file in JUnit's format."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be read: {error.strerror}.\n"
            "The file was removed while it was to be read, or this user may not read it.\n"
            "Run the target again, or leave the file out."
        ) from error
    if size > _MAX_XML_BYTES:
        raise ReportError(
            f"{path}: {size >> 20} MiB; at most {_MAX_XML_BYTES >> 20} MiB are read.\n"
            "A test has put much output into its result.\n"
            "Leave the file out, or run the target with less output."
        )
    return read_xml(path)


def merge_cases(
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
