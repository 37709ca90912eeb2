"""The page: everything hostile stays text, nothing leaves it, and it says what people need without JavaScript."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.ground.record import CaseRecord, Status
from dist_testing.report.__main__ import main
from dist_testing.report.facts import failures, ledger, slow_cases, story_of
from dist_testing.report.gather import gather
from dist_testing.report.model import InvocationRecord, LogRecord, Report, RunRecord
from dist_testing.report.page import page
from dist_testing.report.words import clean, plural, ranks_text, seconds
from tests.report.streams import Action, Case, build_events, write_build_events, write_stream

_RULE = "-" * 100
_TEXT = f"""t.py::bad (world of 3): rank 1 raised ValueError: x; first seen after 0.2 s.
Victims: ranks 0, 2 was stopped (failed because of rank 1).
Ledger of ranks 0, 2: waits in all_reduce #1.
This case alone: pytest t.py::bad
{_RULE}
stacks of rank(s) 0, 2:
a stack
{_RULE}
output of rank 1:
an output
{_RULE}
rank 1 of 3 failed first: it raised ValueError: x

a traceback"""
_BAD = Case("t.py::bad", "failed", "rank 1 raised", _TEXT, 3, "failure", 1, (0, 2))


class _Parsed(HTMLParser):
    """The elements of a page, and its text without that of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.words += data

    def of(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements with a name."""
        return [attributes for found, attributes in self.elements if found == name]


def _page(report: Report) -> _Parsed:
    return _Parsed(page(report, made_wall_s=0.0))


def test_a_failure_reads_from_the_culprit_to_the_logs(tmp_path: Path) -> None:
    """If it fails, people search the page for the rank that is to blame."""
    words = _page(gather([write_stream(tmp_path / "e.jsonl", [_BAD, Case("t.py::ok")])])).words
    order = ["1 failed", "rank 1 raised", "rank 1 of 3 failed first", "a traceback", "Victims: ", "Collective ledger"]
    order += [
        "ranks 0, 2: waits in all_reduce #1 of the default group (t.py:4)",
        "all_reduce #1 of group 0, [[3]] Float: not ended",
        "an output",
        "a stack",
        "pytest t.py::bad",
    ]
    places = [words.find(part) for part in order]
    assert -1 not in places, dict(zip(order, places, strict=True))
    assert places == sorted(places)


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "</script></style></pre><img src=x onerror=alert(1)>",
        "\"><svg onload='alert(1)'>",
        "\u202eevil\u202c\u2066\u200b",
        "\x00\x07\x1b[31mred\x1b[0m\x7f",
        "\ud800",
        "&lt;b&gt;&#x27;",
        "x" * 1_000_000,
        "{{ 7 * 7 }}",
        "javascript:alert(1)",
    ],
)
def test_hostile_texts_stay_text(tmp_path: Path, hostile: str) -> None:
    """If it fails, a test's name runs code in the browser of the person who looks at it."""
    harmless, harmful = tmp_path / "a", tmp_path / "b"
    cases = [
        Case(f"{part}.py::{part}", "failed", part, f"{part}\n{_RULE}\n{part}\n{part}", 2, part, 1, (0,), warning=part)
        for part in ("harmless", hostile)
    ]
    write_stream(harmless / "e.jsonl", cases[:1], target="//harmless")
    write_stream(harmful / "e.jsonl", [cases[1], Case("s.py::s", "skipped", hostile)], target=f"//{hostile}")
    text = page(gather([harmful]), title=hostile, made_wall_s=0.0)
    text.encode()
    parsed = _Parsed(text)
    allowed = {name for name, _ in _page(gather([harmless])).elements} | {"ul"}
    assert {name for name, _ in parsed.elements} <= allowed
    assert len(parsed.of("script")) == 1
    assert not [name for _, attributes in parsed.elements for name in attributes if name.startswith("on")]
    assert all((link["href"] or "").startswith("#") for link in parsed.of("a"))
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]", text)
    assert len(text) < 1_500_000


def test_no_request_can_leave_the_page(tmp_path: Path) -> None:
    """If it fails, opening a page tells a server about it, or CI servers show it without its style."""
    text = page(gather([write_stream(tmp_path / "e.jsonl", [_BAD])]), made_wall_s=0.0)
    parsed = _Parsed(text)
    policy = next(meta["content"] or "" for meta in parsed.of("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        content = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert len(content) == 1
        assert f"{kind}-src 'sha256-{digest}'" in policy
    # An inline style would be refused by the policy.
    assert not [name for name, attributes in parsed.elements if "style" in attributes]
    assert not re.search(r"(src|href)=\"(?!#)|url\(|@import|https?://(?!www\.w3\.org)", text)


def test_the_table_of_all_cases_has_every_case_the_worst_and_slowest_first(tmp_path: Path) -> None:
    """If it fails, the search does not find a case."""
    cases = [
        Case("t.py::no", "skipped", "why", world_size=0),
        Case("t.py::ok", world_size=4),
        Case("t.py::slow", duration_s=2.5),
        _BAD,
    ]
    text = page(gather([write_stream(tmp_path / "e.jsonl", cases)]), made_wall_s=0.0)
    rows = re.findall(r"<tr>(.*?)</tr>", text.partition('id="rows"')[2].partition("</tbody>")[0])
    cells = [[re.sub(r"<[^>]*>", "|", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]
    name = str(tmp_path / "e.jsonl")
    assert cells == [
        ["failed", "|t.bad||rank 1 raised|", name, "3", "rank 1", "0.25 s"],
        ["skipped", "t.no|why|", name, "", "", "0.25 s"],
        ["passed", "t.slow", name, "2", "", "2.50 s"],
        ["passed", "t.ok", name, "4", "", "0.25 s"],
    ]
    assert 'href="#failure-1"' in rows[0]


def test_the_first_failures_have_their_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, the page of a large job is too large, or no log is in it although there is room."""
    monkeypatch.setattr("dist_testing.report.page._WITH_LOGS", 1)
    runs = []
    for name in ("a", "b"):
        logs = tuple(
            LogRecord(f"{number}.log", f"output {name}{number}\n", f"/{name}/{number}.log") for number in (0, 1)
        )
        runs.append(RunRecord(f"//{name}:{name}", cases=(CaseRecord(f"t.{name}", "failed"),), logs=logs))
    words = _page(Report((InvocationRecord("i"),), tuple(runs))).words
    assert [f"output {name}" in words for name in ("a0", "a1", "b0", "b1")] == [True, True, False, False]
    assert "2 logs not in this page: /b/0.log" in words


def test_a_page_needs_jinja2_and_says_so(tmp_path: Path) -> None:
    """If it fails, who has only this package gets a traceback."""
    stream = write_stream(tmp_path / "e.jsonl", [_BAD])
    program = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from dist_testing.report.__main__ import main\n"
        f"sys.exit(main([{str(stream)!r}, {f'--out={tmp_path}/p.html'!r}]))"
    )
    path = os.pathsep.join(sys.path)
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("report: jinja2 is not installed.\n")


def test_the_skip_ledger_says_of_everything_why_it_did_not_run(tmp_path: Path) -> None:
    """If it fails, a target that never ran looks like a green one."""
    xml = tmp_path / "test.xml"
    write_xml(xml, "//a:a", [CaseRecord("t.x", "skipped", message="Need at least 2 CUDA devices")])
    cached = {"cachedLocally": True, "testAttemptStart": "2020-09-13T12:26:40.000Z"}
    more: list[dict[str, object]] = [
        {"id": {"targetCompleted": {"label": "//a:gpu"}}, "aborted": {"reason": "SKIPPED"}},
        {"id": {"targetCompleted": {"label": "//a:broken"}}, "aborted": {"reason": "ANALYSIS_FAILURE"}},
        {"id": {"pattern": {"pattern": ["//a:gone"]}}, "aborted": {"description": "no such target '//a:gone'"}},
        {"id": {"testSummary": {"label": "//a:late"}}, "testSummary": {"overallStatus": "NO_STATUS"}},
        {"id": {"optionsParsed": {}}, "optionsParsed": {"cmdLine": ["--test_filter=x"]}},
    ]
    events = build_events([Action("//a:a", xml, more=cached), Action("//a:none")], *more)
    cut = write_stream(tmp_path / "e.jsonl", [Case("t.py::a", is_cut=True)], collected=4)
    report = gather([write_build_events(tmp_path / "bep.json", events), cut])
    found = {(line.kind, line.target): line for line in ledger(report)}
    assert {kind for kind, _ in found} == {
        "skipped", "incompatible", "not built", "not reached", "ran nothing", "no results", "filtered", "cached"
    }  # fmt: skip
    assert found["not reached", str(cut)].count == 3
    assert found["not built", "//a:gone"].reason == "no such target '//a:gone'"
    assert "from a run of 2020-09-13 12:26:40 UTC" in found["cached", "//a:a"].reason
    words = _page(report).words
    for part in ("Need at least 2 CUDA devices", "//a:gpu", "//a:broken", "//a:late", "--test_filter=x", "//a:none"):
        assert part in words


def _attempts(folder: Path, *attempts: tuple[Status, str], exit_code: int) -> Report:
    """Return the report of attempts of one target, each with the status of its case and Bazel's word."""
    actions = []
    for attempt, (outcome, word) in enumerate(attempts, 1):
        xml = folder / f"{attempt}.xml"
        write_xml(xml, "//a:a", [CaseRecord("t.x", outcome, duration_s=1.0)])
        actions.append(Action("//a:a", xml, word, identity={"attempt": attempt}))
    events = build_events(actions)
    finished = {"exitCode": {"name": "SUCCESS" if exit_code == 0 else "TESTS_FAILED", "code": exit_code}}
    events[-1] = {"id": {"buildFinished": {}}, "finished": finished}
    return gather([write_build_events(folder / "b.json", events)])


def test_what_bazel_says_of_a_target_counts(tmp_path: Path) -> None:
    """If it fails, a timeout of a whole target is not on the page, or a flaky one makes it red although CI is green."""
    (tmp_path / "late").mkdir()
    report = _attempts(tmp_path / "late", ("passed", "TIMEOUT"), exit_code=3)
    assert [failure.case for failure in failures(report)] == [None]
    assert "Bazel says TIMEOUT, and none of its 1 case(s) says why." in _page(report).words
    words = _page(_attempts(tmp_path, ("failed", "FAILED"), ("passed", "PASSED"), exit_code=0)).words
    assert "Passed after retries" in words
    assert "a later attempt passed" in words


def test_a_case_that_took_no_time_is_not_among_the_slowest(tmp_path: Path) -> None:
    """If it fails, files that could not be collected are in the list of slow cases."""
    xml = '<testsuite><testcase classname="t" name="{}" time="{}">{}</testcase></testsuite>'
    (tmp_path / "a.xml").write_text(xml.format("broken", 0, '<error message="ImportError: x"/>'), encoding="utf-8")
    (tmp_path / "b.xml").write_text(xml.format("slow", 2, ""), encoding="utf-8")
    report = gather([tmp_path])
    assert [slow.name for slow in slow_cases(report, 5)] == ["t.slow"]
    assert "ImportError: x" in _page(report).words


def test_pages_of_nothing_and_of_damage_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, an empty folder makes a green page."""
    out = tmp_path / "page.html"
    assert main([str(tmp_path), f"--out={out}"]) == 2
    assert "has no results in it" in capsys.readouterr().err
    assert not out.exists()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "e.jsonl").write_text("{", encoding="utf-8")
    assert main([str(tmp_path / "damaged"), f"--out={out}"]) == 2
    assert "report: e.jsonl: the file contains no event." in capsys.readouterr().err
    assert not out.exists()
    (tmp_path / "damaged" / "e.jsonl").unlink()
    write_stream(tmp_path / "e.jsonl", [Case("t.py::a", is_cut=True)])
    assert main([str(tmp_path), str(tmp_path / "no"), f"--out={out}"]) == 0
    words = _Parsed(out.read_text(encoding="utf-8")).words
    assert "there is no such file or folder" in words
    assert "did not come to its end" in words
    assert main([str(tmp_path), f"--out={tmp_path / 'no' / 'page.html'}"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_numbers_and_texts_read_well() -> None:
    """If it fails, the page has a number that no reader understands, or a name turns the text around it."""
    durations: dict[float, str] = {0: "0 s", 0.0421: "42 ms", 1.429: "1.43 s", 53.2: "53 s", 250: "4 min 10 s"}
    durations |= {7500: "2 h 5 min", -1: "0 s"}
    durations |= dict.fromkeys((float("inf"), float("nan"), 1e300), "unknown")
    assert {value: seconds(value) for value in durations} == durations
    # A world of 64 victims must not fill the page.
    assert ranks_text((0, 1, 2, 3, 5, 7, 8)) == "ranks 0\u20133, 5, 7, 8"
    assert ranks_text((4,)) == "rank 4"
    assert (plural(1, "case"), plural(2, "process", "processes")) == ("1 case", "2 processes")
    assert clean("a\r\nb\tc\x00\u2028") == "a\nb\tc\u2400\u2039U+2028\u203a"
    # A plain traceback is not cut.
    story = story_of("Traceback:\n  x\nVictims of nothing")
    assert (story.head, story.parts, story.is_plain) == ("Traceback:\n  x\nVictims of nothing", (), True)
