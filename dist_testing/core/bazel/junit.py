"""Writes the run's test.xml, whatever happens to the ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from dist_testing.core.ground.record import BAD, CaseRecord
from dist_testing.core.ground.whole_file import whole_file

# Prefix of the message of an expected failure, for which JUnit's format has only <skipped>.
EXPECTED = "xfail: "

# XML 1.0 cannot express these characters, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class XmlSuite:
    """One `<testsuite>` of a test.xml. Its name is the target's label, if the runner has written the file."""

    name: str
    cases: Sequence[CaseRecord]
    properties: Sequence[tuple[str, object]] = ()
    began_wall_s: float | None = None  # wall clock at its begin; None if the file does not tell it


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
    with whole_file(path) as file:
        ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def _add_suite(root: ElementTree.Element, suite: XmlSuite) -> None:
    tags = Counter(map(tag_of, suite.cases))
    attributes = {
        "name": _clean(suite.name),
        "tests": str(len(suite.cases)),
        "failures": str(tags["failure"]),
        "errors": str(tags["error"]),
        "skipped": str(tags["skipped"]),
        "time": f"{sum(case.duration_s for case in suite.cases):.3f}",
    }
    element = ElementTree.SubElement(root, "testsuite", attributes)
    _add_properties(element, suite.properties)
    for case in suite.cases:
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
