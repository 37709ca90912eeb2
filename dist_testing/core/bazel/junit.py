"""Writes the run's test.xml, whatever happens to the ranks, and reads such files for tools."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from dist_testing.core.ground.errors import ReportError

# Prefix of the message of an expected failure, for which JUnit's format has only <skipped>.
EXPECTED = "xfail: "

Outcome = Literal["passed", "skipped", "failed", "error"]

# The elements of outcomes, the mildest first. A case without one has passed.
_TAGS: dict[Outcome, str] = {"skipped": "skipped", "failed": "failure", "error": "error"}

# XML 1.0 cannot express these characters, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class XmlCase:
    """One case of a test.xml.

    Attributes:
        classname: File and class, dotted.
        name: The rest of the name, with parameters.
        outcome: How it ended; "error" if the infrastructure failed and not the test.
        duration_s: Seconds; NaN if the file gives none.
        message: One line: the skip reason, or who failed and how.
        text: The whole report of a failure.
        properties: Name and value, rank by rank.
    """

    classname: str
    name: str
    outcome: Outcome
    duration_s: float
    message: str = ""
    text: str = ""
    properties: Sequence[tuple[str, object]] = field(default_factory=tuple)

    @property
    def has_run(self) -> bool:
        """Whether the test ran. A test that failed as expected ran, too."""
        if self.outcome == "skipped":
            return self.message.startswith(EXPECTED) and not self.message.startswith(f"{EXPECTED}[NOTRUN]")
        return True

    @property
    def key(self) -> str:
        """The name of the case, which is the same in each run."""
        return f"{self.classname}.{self.name}" if self.classname else self.name


@dataclass(frozen=True, slots=True)
class XmlSuite:
    """One `<testsuite>` of a test.xml.

    Attributes:
        name: The target's label, if the runner has written the file.
        cases: The cases in the order of the file.
        properties: Properties of the whole run.
    """

    name: str
    cases: Sequence[XmlCase]
    properties: Sequence[tuple[str, object]] = field(default_factory=tuple)


def name_parts(nodeid: str) -> tuple[list[str], str]:
    """Split a node id into file, classes and function, and its parameters, which may contain any text."""
    head, bracket, parameters = nodeid.partition("[")
    return head.split("::"), bracket + parameters


def module_of(path: str) -> str:
    """Return the dotted name of a file."""
    return path.removesuffix(".py").replace("/", ".")


def xml_name(nodeid: str) -> tuple[str, str]:
    """Return the class name and the name of a case in the XML."""
    (path, *classes), parameters = name_parts(nodeid)
    name = classes.pop() if classes else ""
    return ".".join([module_of(path), *classes]), name + parameters


def write_xml(path: Path, suite: str, cases: Sequence[XmlCase], properties: Sequence[tuple[str, object]] = ()) -> None:
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
    counts = {
        "tests": len(cases),
        "failures": sum(case.outcome == "failed" for case in cases),
        "errors": sum(case.outcome == "error" for case in cases),
        "skipped": sum(case.outcome == "skipped" for case in cases),
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


def _add_case(suite: ElementTree.Element, case: XmlCase) -> None:
    element = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": _clean(case.classname), "name": _clean(case.name), "time": f"{case.duration_s:.3f}"},
    )
    _add_properties(element, case.properties)
    if tag := _TAGS.get(case.outcome):
        ElementTree.SubElement(element, tag, {"message": _clean(case.message)}).text = _clean(case.text)


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


def _read_case(element: ElementTree.Element) -> XmlCase:
    # Worst first: some runners give a case that failed twice two elements.
    found: dict[Outcome, ElementTree.Element] = {}
    for kind, tag in reversed(_TAGS.items()):
        if (child := element.find(tag)) is not None:
            found.setdefault(kind, child)
    outcome: Outcome = next(iter(found), "passed")
    result = found.get(outcome)
    return XmlCase(
        classname=element.get("classname", ""),
        name=element.get("name", ""),
        outcome=outcome,
        duration_s=_seconds(element.get("time", "")),
        message="" if result is None else result.get("message", ""),
        text="" if result is None else result.text or "",
        properties=_read_properties(element),
    )


def _read_properties(element: ElementTree.Element) -> tuple[tuple[str, object], ...]:
    return tuple((item.get("name", ""), item.get("value", "")) for item in element.findall("properties/property"))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if value >= 0 and math.isfinite(value) else math.nan
