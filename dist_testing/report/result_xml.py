"""Reads test.xml files, of any runner that writes JUnit's format."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

from dist_testing.core.bazel.junit import EXPECTED, XmlSuite
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import OF_THE_MACHINE, CaseRecord, RankRecord, Status
from dist_testing.report.model import bounded

# About 100,000 cases. A larger file would take minutes and gigabytes.
_MAX_BYTES = 128 << 20
# The elements of JUnit's format that tell an outcome, the mildest first. A case without one has passed.
_TAGS = ("skipped", "failure", "error")
_RANK = re.compile(r"rank_(\d{1,7})")
# pytest's type of an expected failure, which is a <skipped>.
_XFAIL = "pytest.xfail"
# Numbers in properties, which any program may have written.
_NUMBER = re.compile(r"\d{1,7}")
_SECONDS = re.compile(r"\d{1,9}(\.\d*)?(e-\d{1,3})?", re.IGNORECASE)


def read_xml(path: Path) -> list[XmlSuite]:
    """Read a test.xml; raises ReportError if it is too large, is not XML, or its root is no test suite."""
    try:
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise ReportError(
                f"{path}: {size >> 20} MiB; at most {_MAX_BYTES >> 20} MiB are read.\n"
                "A test has put much output into its result.\n"
                "Leave the file out, or run the target with less output."
            )
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError, LookupError, ValueError) as error:
        # An unknown encoding raises LookupError; an encoding that is not for text raises ValueError.
        raise ReportError(
            f"{path}: cannot be read as XML: {error}.\n"
            "The file was cut off, or it is not a test.xml.\n"
            "Run the target again, or leave the file out."
        ) from error
    if root.tag not in ("testsuite", "testsuites"):
        raise ReportError(
            f"{path}: the root element is <{root.tag}>.\n"
            "The root of a test.xml is <testsuites>.\n"
            "Name test.xml files that Bazel has written, or folders such as bazel-testlogs."
        )
    # Some runners, such as Node's, write a case that is in no suite directly below the root.
    alone = [root] if root.tag == "testsuites" and root.find("testcase") is not None else []
    return [
        XmlSuite(
            suite.get("name", ""),
            tuple(map(_read_case, suite.findall("testcase"))),
            _read_properties(suite),
            time_in(suite.get("timestamp", "")),
        )
        for suite in (*alone, *root.iter("testsuite"))
    ]


def _read_case(element: ElementTree.Element) -> CaseRecord:
    if element.get("status") == "notrun":
        # GoogleTest's word for a case that is switched off.
        ElementTree.SubElement(element, "skipped", {"message": "not run, by its result file"})
    # The worst: some runners give a case that failed twice two elements.
    found = {tag: child for tag in _TAGS if (child := element.find(tag)) is not None}
    tag = next(reversed(found), "")
    message = found[tag].get("message", "") if tag else ""
    classname, name = element.get("classname", ""), element.get("name", "")
    values = _read_properties(element)
    told = {key: str(value) for key, value in values}
    cause, culprit, size = (told.get(key, "") for key in ("cause", "culprit", "world_size"))
    ranks = {int(match[1]): value for key, value in told.items() if (match := _RANK.fullmatch(key))}
    return CaseRecord(
        name=f"{classname}.{name}" if classname else name,
        status=_status(tag, message, cause, tag != "" and found[tag].get("type") == _XFAIL),
        when=_when(tag, classname),
        message=message.removeprefix(EXPECTED),
        text=(found[tag].text or "") if tag else "",
        duration_s=seconds_in(element.get("time", "")),
        world_size=int(size) if _NUMBER.fullmatch(size) else 0,
        cause=cause,
        culprit=int(culprit) if _NUMBER.fullmatch(culprit) else None,
        ranks=tuple(RankRecord(rank, description=value) for rank, value in sorted(ranks.items())),
        properties=values,
    )


def _when(tag: str, classname: str) -> str:
    if not classname and tag in ("skipped", "error"):
        # A file as a whole.
        return "collect"
    # JUnit's word for a failure outside of the test's body, such as in a fixture.
    return "setup" if tag == "error" else "call"


def _status(tag: str, message: str, cause: str, is_expected: bool) -> Status:
    if tag == "skipped":
        return "xfailed" if is_expected or message.startswith(EXPECTED) else "skipped"
    if not tag:
        return "passed"
    return "error" if cause in OF_THE_MACHINE else "failed"


def seconds_in(text: str) -> float:
    """Return a duration that any program may have written; 0 if it is none."""
    return bounded(float(text)) if _SECONDS.fullmatch(text) else 0.0


def time_in(text: object) -> float | None:
    """Return a time in seconds since 1970; None if the text is none. Without a zone it is of this machine's."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (OverflowError, ValueError):
        return None


def _read_properties(element: ElementTree.Element) -> tuple[tuple[str, object], ...]:
    return tuple((item.get("name", ""), item.get("value", "")) for item in element.findall("properties/property"))
