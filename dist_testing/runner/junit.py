"""The run's test.xml: one `<testcase>` per case, written by the runner, whatever happens to the ranks."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

__all__ = ["XmlCase", "write_xml"]

# XML 1.0 has no way to write these, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class XmlCase:
    """One case, as it is written.

    Attributes:
        classname: File and class, dotted.
        name: The rest of the name, with parameters.
        outcome: How it ended; "error" if the machinery failed and not the test.
        duration_s: Seconds.
        message: One line: the skip reason, or who failed and how.
        text: The whole report of a failure.
        properties: Name and value, rank by rank.
    """

    classname: str
    name: str
    outcome: Literal["passed", "skipped", "failed", "error"]
    duration_s: float
    message: str = ""
    text: str = ""
    properties: Sequence[tuple[str, object]] = field(default_factory=tuple)


def write_xml(path: Path, suite: str, cases: Sequence[XmlCase]) -> None:
    """Write the file in one step: a reader sees all of it or none.

    Args:
        path: Where to; its folder exists.
        suite: Name of the suite: the target's label.
        cases: In the order in which they ran.
    """
    counts = {
        "tests": len(cases),
        "failures": sum(case.outcome == "failed" for case in cases),
        "errors": sum(case.outcome == "error" for case in cases),
        "skipped": sum(case.outcome == "skipped" for case in cases),
    }
    attributes = {
        "name": _clean(suite),
        **{name: str(count) for name, count in counts.items()},
        "time": f"{sum(case.duration_s for case in cases):.3f}",
    }
    root = ElementTree.Element("testsuites")
    element = ElementTree.SubElement(root, "testsuite", attributes)
    for case in cases:
        _add_case(element, case)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)
        # mkstemp makes files private; Bazel's may be read by whoever may read the log.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _add_case(suite: ElementTree.Element, case: XmlCase) -> None:
    element = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": _clean(case.classname), "name": _clean(case.name), "time": f"{case.duration_s:.3f}"},
    )
    if case.properties:
        properties = ElementTree.SubElement(element, "properties")
        for name, value in case.properties:
            ElementTree.SubElement(properties, "property", {"name": _clean(name), "value": _clean(str(value))})
    tags = {"skipped": "skipped", "failed": "failure", "error": "error"}
    if tag := tags.get(case.outcome):
        ElementTree.SubElement(element, tag, {"message": _clean(case.message)}).text = _clean(case.text)


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
