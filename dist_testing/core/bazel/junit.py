"""Writes the run's test.xml, whatever happens to the ranks, and reads such files for tools."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import BAD, MAX_S, OF_THE_MACHINE, CaseRecord, RankRecord, Status

# Prefix of the message of an expected failure, for which JUnit's format has only <skipped>.
EXPECTED = "xfail: "

# The elements of JUnit's format that tell an outcome, the mildest first. A case without one has passed.
_TAGS = ("skipped", "failure", "error")
_RANK = re.compile(r"rank_(\d{1,7})")
# Numbers in properties, which any program may have written.
_NUMBER = re.compile(r"\d{1,7}")
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")

# XML 1.0 cannot express these characters, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class XmlSuite:
    """One `<testsuite>` of a test.xml.

    Attributes:
        name: The target's label, if the runner has written the file.
        cases: The cases in the order of the file.
        properties: Properties of the whole run.
    """

    name: str
    cases: Sequence[CaseRecord]
    properties: Sequence[tuple[str, object]] = field(default_factory=tuple)


def tag_of(case: CaseRecord) -> str:
    """Return the element that tells the outcome of a case; "" for a pass. A failure outside the call is an error."""
    if case.status in ("skipped", "xfailed"):
        return "skipped"
    if case.status not in BAD:
        return ""
    return "failure" if case.when == "call" and case.status != "unfinished" else "error"


def write_xml(
    path: Path, suite: str, cases: Sequence[CaseRecord], properties: Sequence[tuple[str, object]] = ()
) -> None:
    """Write the file in one step: a reader sees all of it or nothing. The name of the suite is the target's label."""
    write_suites(path, [XmlSuite(suite, cases, properties)])


def write_suites(path: Path, suites: Sequence[XmlSuite]) -> None:
    """Write a file of several suites, in one step as `write_xml` does."""
    root = ElementTree.Element("testsuites")
    for suite in suites:
        _add_suite(root, suite)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)
        # mkstemp makes private files. Users who may read the log may read this file, too.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _add_suite(root: ElementTree.Element, suite: XmlSuite) -> None:
    cases = suite.cases
    tags = Counter(map(tag_of, cases))
    counts = {
        "tests": len(cases),
        "failures": tags["failure"],
        "errors": tags["error"],
        "skipped": tags["skipped"],
    }
    attributes = {
        "name": _clean(suite.name),
        **{name: str(count) for name, count in counts.items()},
        "time": f"{sum(case.duration_s for case in cases):.3f}",
    }
    element = ElementTree.SubElement(root, "testsuite", attributes)
    _add_properties(element, suite.properties)
    for case in cases:
        _add_case(element, case)


def _add_case(suite: ElementTree.Element, case: CaseRecord) -> None:
    # A dot inside parameters belongs to the name; a file that could not be collected has no class.
    classname = "" if case.when == "collect" else case.name.partition("[")[0].rpartition(".")[0]
    name = case.name.removeprefix(f"{classname}.") if classname else case.name
    attributes = {"classname": _clean(classname), "name": _clean(name), "time": f"{case.duration_s:.3f}"}
    element = ElementTree.SubElement(suite, "testcase", attributes)
    _add_properties(element, case.properties)
    if tag := tag_of(case):
        message = f"{EXPECTED}{case.message}" if case.status == "xfailed" else case.message
        ElementTree.SubElement(element, tag, {"message": _clean(message)}).text = _clean(case.text)


def _add_properties(element: ElementTree.Element, values: Sequence[tuple[str, object]]) -> None:
    if values:
        properties = ElementTree.SubElement(element, "properties")
        for name, value in values:
            ElementTree.SubElement(properties, "property", {"name": _clean(name), "value": _clean(str(value))})


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def read_xml(path: Path) -> list[XmlSuite]:
    """Read a test.xml of any runner that writes JUnit's format.

    Raises:
        ReportError: If the file is not XML, or its root is no test suite.
    """
    try:
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
    return [
        XmlSuite(
            suite.get("name", ""),
            tuple(_read_case(case) for case in suite.findall("testcase")),
            _read_properties(suite),
        )
        for suite in root.iter("testsuite")
    ]


def _read_case(element: ElementTree.Element) -> CaseRecord:
    # The worst: some runners give a case that failed twice two elements.
    found = {tag: child for tag in _TAGS if (child := element.find(tag)) is not None}
    tag = next(reversed(found), "")
    message = found[tag].get("message", "") if tag else ""
    classname, name = element.get("classname", ""), element.get("name", "")
    values = _read_properties(element)
    told = {key: str(value) for key, value in values}
    cause, culprit = told.get("cause", ""), told.get("culprit", "")
    ranks = {int(match[1]): value for key, value in told.items() if (match := _RANK.fullmatch(key))}
    return CaseRecord(
        name=f"{classname}.{name}" if classname else name,
        status=_status(tag, message, cause),
        # JUnit's word for a failure outside of the test's body: in a fixture, or while a file is imported.
        when="setup" if tag == "error" else "call",
        message=message.removeprefix(EXPECTED),
        text=(found[tag].text or "") if tag else "",
        duration_s=_seconds(element.get("time", "")),
        world_size=_number(told.get("world_size", "")),
        cause=cause,
        culprit=_number(culprit) if _NUMBER.fullmatch(culprit) else None,
        ranks=tuple(RankRecord(rank, description=value) for rank, value in sorted(ranks.items())),
        properties=values,
    )


def _status(tag: str, message: str, cause: str) -> Status:
    if tag == "skipped":
        return "xfailed" if message.startswith(EXPECTED) else "skipped"
    if not tag:
        return "passed"
    return "error" if cause in OF_THE_MACHINE else "failed"


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0


def _seconds(text: str) -> float:
    return min(float(text), MAX_S) if _SECONDS.fullmatch(text) else 0.0


def _read_properties(element: ElementTree.Element) -> tuple[tuple[str, object], ...]:
    return tuple((item.get("name", ""), item.get("value", "")) for item in element.findall("properties/property"))
