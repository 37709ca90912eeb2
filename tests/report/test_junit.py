"""The XML file of a run: what is written, and what is read of files of any runner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import pytest

from dist_testing.core.bazel.junit import XmlSuite, write_xml
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import CaseRecord, RankRecord, Status
from dist_testing.report.result_xml import read_xml

# Characters that XML 1.0 cannot represent in any form.
FORBIDDEN = [*(chr(code) for code in range(0x20) if chr(code) not in "\t\n\r"), "\ud800", "\udcff", "\ufffe", "\uffff"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the file that Bazel wants."""
    return tmp_path / "test.xml"


def suite(path: Path) -> ElementTree.Element:
    """Parse the file and return its only suite."""
    root = ElementTree.fromstring(path.read_bytes())
    assert root.tag == "testsuites"
    (suite,) = root
    return suite


def test_every_case_is_there_once_with_its_outcome(path: Path) -> None:
    """If this fails, dashboards, which count these elements, show wrong numbers, or reports lose what is written."""
    cases = (
        CaseRecord("tests.test_a.test_ok", "passed", duration_s=0.25, properties=(("colour", "red"),)),
        CaseRecord("tests.test_a.Class.test_skip[2.5]", "skipped", message="why"),
        CaseRecord("tests.test_a.test_known", "xfailed", message="a bug"),
        CaseRecord("tests.test_a.test_bad", "failed", duration_s=1.5, message="rank 1 raised", text="the report"),
        CaseRecord("tests.test_a.test_broken", "failed", duration_s=0.25, message="machine", text="text", when="setup"),
        CaseRecord("tests.test_a.test_worse", "failed", message="rank 0", text="report"),
        CaseRecord("a/test_b.py", "failed", message="no module", when="collect"),
    )
    write_xml(path, "//tests:a_gloo", cases, [("run_number", 2)])
    element = suite(path)
    counts = {"name": "//tests:a_gloo", "tests": "7", "failures": "2", "errors": "2", "skipped": "2", "time": "2.000"}
    assert element.attrib == counts
    found = [(case.get("classname"), case.get("name"), case.get("time")) for case in element.iter("testcase")]
    assert found == [
        ("tests.test_a", "test_ok", "0.250"),
        ("tests.test_a.Class", "test_skip[2.5]", "0.000"),
        ("tests.test_a", "test_known", "0.000"),
        ("tests.test_a", "test_bad", "1.500"),
        ("tests.test_a", "test_broken", "0.250"),
        ("tests.test_a", "test_worse", "0.000"),
        ("", "a/test_b.py", "0.000"),
    ]
    tags = [[child.tag for child in case] for case in element.iter("testcase")]
    assert tags == [["properties"], ["skipped"], ["skipped"], ["failure"], ["error"], ["failure"], ["error"]]
    failure = element[4][0]
    assert (failure.get("message"), failure.text) == ("rank 1 raised", "the report")
    assert read_xml(path) == [XmlSuite("//tests:a_gloo", cases, (("run_number", "2"),))]


@pytest.mark.parametrize("character", FORBIDDEN, ids=lambda character: f"U+{ord(character):04X}")
@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_characters_that_xml_lacks_are_replaced(
    path: Path, character: str, outcome: Literal["failed", "skipped"]
) -> None:
    """If this fails, one such character hides all results from Bazel."""
    bad = f"a{character}b"
    write_xml(path, bad, [CaseRecord(f"{bad}.{bad}", outcome, message=bad, text=bad, properties=((bad, bad),))])
    element = suite(path)
    case = element[0]
    texts = [element.get("name"), case.get("classname"), case.get("name")]
    texts += [*case[0][0].attrib.values(), case[1].get("message"), case[1].text]
    assert texts == ["a\ufffdb"] * 7


@pytest.mark.parametrize("text", ["<tag attr='1'>&amp; ]]> \"q\"", "tab\tline\nend", "\u00fc \u4e16 \U0001f4a9", ""])
def test_all_other_text_is_unchanged(path: Path, text: str) -> None:
    """If this fails, the text of a traceback changes in the XML."""
    write_xml(path, "s", [CaseRecord(f"c.{text}", "failed", message=text, text=text)])
    case = suite(path)[0]
    assert (case.get("name"), case[0].get("message"), case[0].text or "") == (text, text, text)


def test_the_file_replaces_an_older_one_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, Bazel collects a stale or a temporary file, or a full disk destroys the last good file."""
    path.write_text("old", encoding="utf-8")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ElementTree.ElementTree, "write", fail)
        with pytest.raises(OSError, match="No space left"):
            write_xml(path, "s", [CaseRecord("c.n", "passed")])
    assert path.read_text(encoding="utf-8") == "old"
    before = os.umask(0o077)
    try:
        write_xml(path, "s", [])
    finally:
        os.umask(before)
    assert [file.name for file in path.parent.iterdir()] == ["test.xml"]
    # A shard may have no case.
    assert (suite(path).get("name"), suite(path).get("tests"), len(suite(path))) == ("s", "0", 0)
    # Bazel may run as another user.
    assert path.stat().st_mode & 0o777 == 0o644


def test_what_is_known_of_a_case_is_in_its_element(path: Path) -> None:
    """If this fails, a run without events has no culprit."""
    properties = {"world_size": 2, "cause": "infrastructure", "culprit": 1, "rank_0": "was in call"}
    write_xml(path, "s", [CaseRecord("a.b", "error", properties=tuple(properties.items()))])
    written = [(item.get("name"), item.get("value")) for item in suite(path)[0][0]]
    assert written == [(name, str(value)) for name, value in properties.items()]
    (case,) = read_xml(path)[0].cases
    assert (case.status, case.world_size, case.culprit) == ("error", 2, 1)
    assert case.ranks == (RankRecord(0, description="was in call"),)


def test_files_of_other_runners_are_read_too(path: Path) -> None:
    """If this fails, reports lack the results of Bazel's own file or of pytest's, which has another root."""
    path.write_text(
        '<testsuite name="pytest"><testcase name="a" time="x"/><testcase classname="c" name="b" time="-1">'
        "<system-out>said</system-out><failure>bad</failure><error message='worse'/></testcase></testsuite>",
        encoding="utf-8",
    )
    (suite,) = read_xml(path)
    first, second = suite.cases
    assert (first.name, first.status, first.duration_s) == ("a", "passed", 0.0)
    assert (second.name, second.status, second.when, second.message) == ("c.b", "failed", "setup", "worse")
    # Vitest, GoogleTest and Python write what a number needs.
    times = {"0.0025000000000001": 0.0025, "2.": 2.0, "2.5E-03": 0.0025, "1e9": 0.0, "1e-999": 0.0, "2,5": 0.0}
    cases = "".join(f'<testcase name="a" time="{time}"/>' for time in times)
    path.write_text(f"<testsuite>{cases}</testsuite>")
    assert [case.duration_s for case in read_xml(path)[0].cases] == pytest.approx(list(times.values()))
    # Node's: without a suite.
    path.write_text('<testsuites><testcase name="a"><failure/></testcase><testsuite name="s"/></testsuites>')
    assert [(suite.name, [case.status for case in suite.cases]) for suite in read_xml(path)] == [
        ("", ["failed"]),
        ("s", []),
    ]
    # GoogleTest's: switched off.
    path.write_text('<testsuite><testcase name="a" status="run"/><testcase name="b" status="notrun"/></testsuite>')
    (suite,) = read_xml(path)
    assert [(case.name, case.status, case.has_run) for case in suite.cases] == [
        ("a", "passed", True),
        ("b", "skipped", False),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read as XML"),
        (b"<testsuites><testsuite>", "cannot be read as XML"),
        (b"\x00\xff", "cannot be read as XML"),
        (b'<?xml version="1.0" encoding="nonsense"?><testsuites/>', "cannot be read as XML"),
        (b'<?xml version="1.0" encoding="hex"?><testsuites/>', "cannot be read as XML"),
        (b'<?xml version="1.0" encoding="utf-7"?><testsuites/>', "cannot be read as XML"),
        (b"<html/>", "the root element is <html>"),
        (None, "No such file"),
    ],
)
def test_an_unusable_file_is_refused(path: Path, content: bytes | None, said: str) -> None:
    """If this fails, a file that a killed run left behind ends a report with a traceback."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ReportError) as caught:
        read_xml(path)
    assert said in str(caught.value).partition("\n")[0]
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("outcome", "message", "has_run"),
    [
        ("passed", "", True),
        ("failed", "", True),
        ("error", "", True),
        ("skipped", "no GPU", False),
        ("xfailed", "known", True),
        ("xfailed", "[NOTRUN] known", False),
    ],
)
def test_an_expected_failure_has_run(outcome: Status, message: str, has_run: bool) -> None:
    """If this fails, a target of expected failures counts as one that ran nothing. JUnit calls them skipped."""
    assert CaseRecord("c.n", outcome, message=message).has_run == has_run
