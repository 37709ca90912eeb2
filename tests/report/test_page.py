"""The page: everything hostile stays text, nothing leaves it, and it says what people need without JavaScript."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.events.event import RunEnded
from dist_testing.core.ground.record import CaseRecord, Status
from dist_testing.report.__main__ import main
from dist_testing.report.facts import failures, ledger, slow_cases, story_of
from dist_testing.report.files import ctrf, write_merged_junit
from dist_testing.report.gather import gather
from dist_testing.report.model import InvocationRecord, LogRecord, Report, RunRecord
from dist_testing.report.page import page
from dist_testing.report.result_xml import read_xml
from dist_testing.report.words import clean, plural, ranks_text, seconds
from tests.report.streams import (
    RULE,
    Action,
    Case,
    build_events,
    finished,
    stream_events,
    write_build_events,
    write_events,
    write_stream,
)

_TEXT = f"""t.py::bad (world of 3): rank 1 raised ValueError: x; first seen after 0.2 s.
Victims: ranks 0, 2 was stopped (failed because of rank 1).
Ledger of ranks 0, 2: waits in all_reduce #1.
This case alone: pytest t.py::bad
{RULE}
stacks of rank(s) 0, 2:
a stack
{RULE}
output of rank 1:
an output
{RULE}
rank 1 of 3 failed first: it raised ValueError: x

a traceback"""
_BAD = Case("t.py::bad", "failed", "rank 1 raised", _TEXT, 3, "failure", 1, (0, 2))


class _Elements(HTMLParser):
    """The elements of a page, each with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements with a name."""
        return [attributes for found, attributes in self.found if found == name]


def _page(report: Report) -> str:
    return page(report, made_wall_s=0.0)


def _words(text: str) -> str:
    """Return what a reader sees of a page."""
    return html.unescape(re.sub(r"<(script|style)>.*?</\1>|<[^>]*>", "", text, flags=re.DOTALL))


def _built(folder: Path, actions: list[Action], *more: dict[str, object], code: int | None = None) -> Report:
    """Return the report of an invocation of Bazel. `code` replaces the exit status that follows from the actions."""
    events = build_events(actions, *more)
    if code is not None:
        events[-1] = finished(code)
    return gather([write_build_events(folder / "bep.json", events)])


def _xml(path: Path, *cases: CaseRecord) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_xml(path, "//a:a", cases)
    return path


def test_a_failure_reads_from_the_culprit_to_the_logs(tmp_path: Path) -> None:
    """If it fails, people search the page for the rank that is to blame."""
    words = _words(_page(gather([write_stream(tmp_path / "e.jsonl", [_BAD, Case("t.py::ok")])])))
    order = ["1 failed", "rank 1 raised", "rank 1 of 3 failed first", "a traceback", "Victims: ", "Collective ledger"]
    order += ["ranks 0, 2: waits in all_reduce #1 of the default group (t.py:4)"]
    order += ["all_reduce #1 of group 0, [[3]] Float: not ended", "an output", "a stack", "pytest t.py::bad"]
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
        Case(f"{part}.py::{part}", "failed", part, f"{part}\n{RULE}\n{part}\n{part}", 2, part, 1, (0,), warning=part)
        for part in ("harmless", hostile)
    ]
    write_stream(harmless / "e.jsonl", cases[:1], target="//harmless")
    write_stream(harmful / "e.jsonl", [cases[1], Case("s.py::s", "skipped", hostile)], target=f"//{hostile}")
    text = page(gather([harmful]), title=hostile, made_wall_s=0.0)
    text.encode()
    elements = _Elements(text)
    allowed = {name for name, _ in _Elements(_page(gather([harmless]))).found} | {"ul"}
    assert {name for name, _ in elements.found} <= allowed
    assert len(elements.of("script")) == 1
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert all((link["href"] or "").startswith("#") for link in elements.of("a"))
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]", text)
    assert len(text) < 1_500_000


def test_no_request_can_leave_the_page(tmp_path: Path) -> None:
    """If it fails, opening a page tells a server about it, or CI servers show it without its style."""
    text = _page(gather([write_stream(tmp_path / "e.jsonl", [_BAD])]))
    elements = _Elements(text)
    policy = next(meta["content"] or "" for meta in elements.of("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    # An inline style would be refused by the policy.
    assert not [name for name, attributes in elements.found if "style" in attributes]
    assert not re.search(r"(src|href)=\"(?!#)|url\(|@import|https?://(?!www\.w3\.org)", text)


def test_the_table_of_all_cases_has_every_case_the_worst_and_slowest_first(tmp_path: Path) -> None:
    """If it fails, the search does not find a case."""
    skipped = Case("t.py::no", "skipped", "why", world_size=0)
    cases = [skipped, Case("t.py::ok", world_size=4), Case("t.py::slow", duration_s=2.5), _BAD]
    text = _page(gather([write_stream(tmp_path / "e.jsonl", cases)]))
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


def test_the_first_failures_have_their_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, the page of a large job is too large, or no log is in it although there is room."""
    monkeypatch.setattr("dist_testing.report.page._WITH_LOGS", 1)
    runs = []
    for name in ("a", "b"):
        logs = tuple(LogRecord(f"{n}.log", f"output {name}{n}\n", f"/{name}/{n}.log") for n in (0, 1))
        runs.append(RunRecord(f"//{name}:{name}", cases=(CaseRecord(f"t.{name}", "failed"),), logs=logs))
    words = _words(_page(Report((InvocationRecord("i"),), tuple(runs))))
    assert [f"output {name}" in words for name in ("a0", "a1", "b0", "b1")] == [True, True, False, False]
    assert "2 logs not in this page: /b/0.log" in words


def test_a_page_needs_jinja2_alone_and_says_so(tmp_path: Path) -> None:
    """If it fails, who has only this package gets a traceback, or a machine that makes pages must install torch."""
    stream = write_stream(tmp_path / "e.jsonl", [_BAD])
    program = (
        "import sys; from dist_testing.report.__main__ import main\n"
        "print(sorted({'torch', 'pytest', 'jinja2'} & set(sys.modules)))\n"
        "sys.modules['jinja2'] = None\n"
        f"sys.exit(main([{str(stream)!r}, {f'--out={tmp_path}/p.html'!r}]))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "[]\n")
    assert ended.stderr.startswith("report: jinja2 is not installed.\n")


def test_the_skip_ledger_says_of_everything_why_it_did_not_run(tmp_path: Path) -> None:
    """If it fails, a target that never ran looks like a green one."""
    xml = _xml(tmp_path / "test.xml", CaseRecord("t.x", "skipped", message="Need at least 2 CUDA devices"))
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
    words = _words(_page(report))
    for part in ("Need at least 2 CUDA devices", "//a:gpu", "//a:broken", "//a:late", "--test_filter=x", "//a:none"):
        assert part in words


@pytest.mark.parametrize(
    ("attempts", "code", "counted", "said"),
    [
        ([("passed", "TIMEOUT")], 3, [None], "Bazel says TIMEOUT, and none of its 1 case(s) says why."),
        ([("failed", "FAILED"), ("passed", "PASSED")], 0, ["t.x"], "Passed after retries"),
        ([("failed", "FAILED"), ("passed", "PASSED")], 0, ["t.x"], "a later attempt passed"),
    ],
)
def test_what_bazel_says_of_a_target_counts(
    tmp_path: Path, attempts: list[tuple[Status, str]], code: int, counted: list[str | None], said: str
) -> None:
    """If it fails, a timeout of a whole target is not on the page, or a flaky one makes it red although CI is green."""
    actions = []
    for attempt, (status, word) in enumerate(attempts, 1):
        xml = _xml(tmp_path / f"{attempt}.xml", CaseRecord("t.x", status, duration_s=1.0))
        actions.append(Action("//a:a", xml, word, identity={"attempt": attempt}))
    report = _built(tmp_path, actions, code=code)
    assert [failure.case and failure.case.name for failure in failures(report)] == counted
    assert said in _words(_page(report))
    # Programs that know only cases see the failure, too.
    write_merged_junit(report, tmp_path / "merged.xml")
    (suite,) = read_xml(tmp_path / "merged.xml")
    told = [(case.name, case.message) for case in suite.cases if case.status == "failed"]
    assert told == ([("//a:a", said)] if code else [])
    assert json.loads(ctrf(report))["results"]["summary"]["failed"] == len(told)


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ({"e.jsonl": 0}, "Passed"),
        # Of pytest.exit("enough", returncode=0), after one of two tests.
        ({"two.jsonl": 0}, "Incomplete"),
        # Of a run whose tests are all deselected.
        ({"none.jsonl": 5}, "Nothing ran"),
        ({"e.jsonl": 3}, "The run ended with exit status 3, and none of its 1 case(s) says why."),
        # Of pytest-xdist, the controller decides.
        ({"e.jsonl": 1, "e.gw0.jsonl": 0}, "The run ended with exit status 1,"),
        ({"e.jsonl": 0, "e.gw10.jsonl": 1}, "Passed"),
    ],
)
def test_the_exit_status_of_pytest_counts(tmp_path: Path, codes: dict[str, int], said: str) -> None:
    """If it fails, a run that was stopped between two tests, or that --cov-fail-under has failed, is a green page."""
    for name, code in codes.items():
        cases = [] if name == "none.jsonl" else [Case("t.py::ok")]
        events = stream_events(cases, collected=2 if name == "two.jsonl" else len(cases))
        write_events(tmp_path / name, [*events[:-1], RunEnded(200.0, code)])
    assert said in _words(_page(gather([tmp_path])))


def test_a_case_that_took_no_time_is_not_among_the_slowest(tmp_path: Path) -> None:
    """If it fails, files that could not be collected are in the list of slow cases."""
    broken = CaseRecord("t.broken", "failed", message="ImportError: x", when="setup")
    report = gather([_xml(tmp_path / "a.xml", broken, CaseRecord("t.slow", "passed", duration_s=2.0))])
    assert [slow.name for slow in slow_cases(report, 5)] == ["t.slow"]
    assert "ImportError: x" in _words(_page(report))


def test_pages_of_nothing_and_of_damage_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, an empty folder makes a green page."""
    out = tmp_path / "page.html"
    damaged = tmp_path / "damaged" / "e.jsonl"
    damaged.parent.mkdir()
    for folder, said in ((tmp_path, "has no results in it"), (damaged.parent, "e.jsonl: the file contains no event.")):
        assert main([str(folder), f"--out={out}"]) == 2
        assert said in capsys.readouterr().err
        assert not out.exists()
        damaged.write_text("{", encoding="utf-8")
    damaged.unlink()
    write_stream(tmp_path / "e.jsonl", [Case("t.py::a", is_cut=True)])
    assert main([str(tmp_path), str(tmp_path / "no"), f"--out={out}"]) == 0
    words = _words(out.read_text(encoding="utf-8"))
    assert "there is no such file or folder" in words
    assert "did not come to its end" in words
    assert main([str(tmp_path), f"--out={tmp_path / 'no' / 'page.html'}"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_results_that_are_not_here_are_one_problem_with_its_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it fails, a run with --remote_download_minimal fills the page with the same sentence, or does not say why."""
    uris = {f"//a:r{number}": f"bytestream://host/blobs/{'a' * 64}/42" for number in range(7)}
    uris["//a:gone"] = f"file://{tmp_path}/gone/test.xml"
    actions = [
        Action(label, more={"testActionOutput": [{"name": "test.xml", "uri": uri}]}) for label, uri in uris.items()
    ]
    events = write_build_events(tmp_path / "bep.json", build_events([*actions, Action("//a:none")]))
    assert main([str(events), f"--out={tmp_path / 'page.html'}"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "report: //a:r0 (and 7 more): its test.xml is not on this machine, so its cases are unknown.",
        "report: //a:none: it has left no test.xml, so its cases are unknown.",
    ]
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(f"//a:r{number}" in text for number in range(7))
    for once in (
        ">Passed, details unknown</h1>",
        "--remote_download_outputs=toplevel",
        "and the same of 6 more",
        "It was removed, or the build events are of another machine.",
        "The test or its worker ended before Bazel could write the file.",
    ):
        assert text.count(once) == 1, once


def test_a_failure_names_its_worker_and_its_stacks_have_short_paths(tmp_path: Path) -> None:
    """If it fails, no one sees that all failures are of one worker, or where a rank was."""
    told = (
        f"rank 1 raised\n{RULE}\nstacks of rank(s) 0:\n"
        '  File "/root/.cache/workers/7/wheels/769c2f2f/site-packages/torch/nn/linear.py", line 3 in forward\n'
        '  File "/root/sandbox/12/bin/a/b_gloo.runfiles/_main/a/test_b.py", line 9 in test_b\n'
        f'  File "/usr/lib/x.py", line 1 in y\n{RULE}\nrank 1 of 2 failed first: it raised\n\nE   ValueError'
    )
    xml = _xml(tmp_path / "testlogs" / "a" / "a" / "test.xml")
    case = Case("a/t.py::bad", "failed", "rank 1 raised", told, 2, "failure", 1, (0,))
    write_stream(xml.parent / "test.outputs" / "events.jsonl.gz", [case], target="//a:a", host="worker-7")
    report = _built(tmp_path, [Action("//a:a", xml, "FAILED", {"executionInfo": {"strategy": "remote"}})])
    assert report.runs[0].host == "worker-7"
    text = _page(report)
    assert '<span class="chip">on worker-7</span>' in text
    assert "File &#34;.../site-packages/torch/nn/linear.py&#34;, line 3 in forward" in text
    assert "File &#34;.../a/test_b.py&#34;, line 9 in test_b" in text
    assert "File &#34;/usr/lib/x.py&#34;, line 1 in y" in text


def test_a_target_that_was_not_built_has_its_reason_and_is_in_the_head(tmp_path: Path) -> None:
    """If it fails, a page says that 3 of 3 cases failed, or "it could not be built" of a target for absent GPUs."""
    told = (
        "(02:27:19) INFO: Analyzed 5 targets.\n"
        "(02:27:19) WARNING: errors encountered while analyzing target '//a:gpus', it will not be built.\n"
        "Target //a:gpus is incompatible and cannot be built, but was explicitly requested.\nDependency chain:\n"
        "    //a:other (f4ea99)\n    //a:gpus (f4ea99)   <-- target platform didn't satisfy constraint //c:gpus_2\n"
        "(02:27:19) INFO: Analysis succeeded for only 4 of 5 top-level targets\n"
    )
    more: list[dict[str, object]] = [
        {"id": {"progress": {}}, "progress": {"stderr": told}},
        {"id": {"targetCompleted": {"label": "//a:gpus"}}, "aborted": {}},
    ]
    tested = [Action("//a:a", _xml(tmp_path / "test.xml", CaseRecord("t.ok", "passed", duration_s=1.0)))]
    report = _built(tmp_path, tested, *more, code=1)
    (line,) = report.not_run
    assert line.reason == (
        "Target //a:gpus is incompatible and cannot be built, but was explicitly requested: "
        "target platform didn't satisfy constraint //c:gpus_2"
    )
    assert ">1 target not built</h1>" in _page(report)
    broken = {"failureDetail": {"message": "no such file"}}
    text = _page(_built(tmp_path, tested, {"id": {"targetCompleted": {"label": "//a:broken"}}, "completed": broken}))
    assert "1 target not built" in text[text.index("<header") : text.index("</header")]


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
