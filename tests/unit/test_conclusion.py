"""The result of a whole run where its cases alone do not decide it, and the first line of its log."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path

import pytest

from dist_testing.core.bazel.conclusion import Banner, Conclusion
from dist_testing.core.bazel.protocol import Protocol
from dist_testing.core.events.event import CaseEnded, CaseRecorded, CaseStarted, TestsCollected
from dist_testing.core.ground.backends import backend_named
from dist_testing.core.ground.record import CaseRecord, Status
from dist_testing.core.ground.spec import Spec

_NOTHING_RAN = 5


def _conclusion(protocol: Protocol, *, log: io.StringIO | None = None) -> Conclusion:
    spec = Spec("//a:a", backend_named("gloo"), (2,), "fork", srcs=("//a:test_a.py",))
    return Conclusion(spec, protocol, Banner(log or io.StringIO(), "head"))


@pytest.mark.parametrize(
    ("protocol", "code"),
    [
        (Protocol(), _NOTHING_RAN),
        (Protocol(shard=(0, 2)), _NOTHING_RAN),
        (Protocol(shard=(1, 2)), 0),
        (Protocol(test_filter="x"), 0),
        (Protocol(shard=(0, 2), test_filter="x"), 0),
    ],
)
def test_a_target_without_cases_fails_in_its_first_shard(tmp_path: Path, protocol: Protocol, code: int) -> None:
    """If this fails, a target without cases is always green. A later shard or a filter may leave none."""
    assert _conclusion(protocol).conclude(_NOTHING_RAN) == code
    assert _conclusion(dataclasses.replace(protocol, xml_file=tmp_path / "test.xml")).conclude(0) == code
    # A person sees what --collect-only prints; for Bazel it would be a pass.
    assert _conclusion(protocol).conclude(0) == 0


@pytest.mark.parametrize(
    ("protocol", "decides", "code"),
    [
        (Protocol(), False, 1),
        (Protocol(shard=(0, 2)), False, 0),
        (Protocol(shard=(0, 2)), True, 1),
        (Protocol(shard=(0, 2), test_filter="x"), True, 0),
    ],
)
def test_only_a_whole_target_that_skips_breaks_a_promise(protocol: Protocol, decides: bool, code: int) -> None:
    """If this fails, a developer's single skipped test breaks the promise, or a target that always skips is green."""
    conclusion = _conclusion(protocol)
    conclusion.is_promised = True
    conclusion.decides_for_target = decides
    conclusion.add(CaseRecord("a.x", "skipped", message="not today"))
    assert conclusion.conclude(0) == code


def test_only_the_first_infrastructure_failure_is_reported(tmp_path: Path) -> None:
    """If this fails, the report shows a later failure of the machine, which only follows from the first."""
    file = tmp_path / "infrastructure"
    conclusion = _conclusion(Protocol(infrastructure_file=file))
    conclusion.tell_infrastructure("the GPU is lost")
    conclusion.tell_infrastructure("there is no GPU")
    assert file.read_text(encoding="utf-8") == "dist_testing\nthe GPU is lost\n"


@pytest.mark.parametrize(
    ("protocol", "in_vain", "end", "warns"),
    [
        (Protocol(test_filter="x\n"), True, ": NOTHING RAN: no case matches --test_filter='x\\n'", True),
        (Protocol(shard=(0, 2), test_filter="x\n"), True, ": NOTHING RAN: no case matches --test_filter='x\\n'", True),
        (Protocol(shard=(1, 2), test_filter="x\n"), True, ": NOTHING RAN: no case matches --test_filter='x\\n'", False),
        # The filter means a case of another shard, or of a file that was not imported.
        (Protocol(shard=(1, 2), test_filter="x"), False, "", False),
        (Protocol(shard=(1, 2)), False, "", False),
    ],
)
def test_a_filter_that_matches_nothing_is_reported(
    tmp_path: Path, protocol: Protocol, in_vain: bool, end: str, warns: bool
) -> None:
    """If this fails, a misspelt filter passes without a warning. It passes because other targets may match."""
    file, log = tmp_path / "warnings", io.StringIO()
    conclusion = _conclusion(dataclasses.replace(protocol, warnings_file=file), log=log)
    conclusion.is_filter_in_vain = in_vain
    assert conclusion.conclude(_NOTHING_RAN) == 0
    assert log.getvalue() == f"head{end}\n"
    assert file.exists() == warns


@pytest.mark.parametrize(
    ("outcome", "interruption", "shard", "end", "warns"),
    [
        ("passed", "", (0, 1), ": NO CASE RAN ON RANKS", True),
        ("failed", "", (0, 2), ": NO CASE RAN ON RANKS", True),
        # The first shard has warned already.
        ("passed", "", (1, 2), ": NO CASE RAN ON RANKS", False),
        ("skipped", "", (0, 1), ": EVERY CASE WAS SKIPPED: without a reason", False),
        # The run failed for another reason.
        ("passed", "Ctrl-C", (0, 1), ": NO CASE RAN ON RANKS", False),
    ],
)
def test_a_target_without_ranks_is_reported(
    tmp_path: Path, outcome: Status, interruption: str, shard: tuple[int, int], end: str, warns: bool
) -> None:
    """If this fails, a test whose marker was forgotten passes without having run on any rank."""
    file, log = tmp_path / "warnings", io.StringIO()
    conclusion = _conclusion(Protocol(warnings_file=file, shard=shard), log=log)
    conclusion.has_ranks = False
    conclusion.add(CaseRecord("a.x", outcome))
    conclusion.interruption = interruption
    conclusion.conclude(int(outcome == "failed"))
    assert log.getvalue() == f"head{end}\n"
    assert ("no case ran on ranks" in (file.read_text() if file.exists() else "")) == warns


def test_a_running_case_is_one_case_of_the_results() -> None:
    """If this fails, a case counts twice after its teardown has failed, or is lost if the run ends within it."""
    conclusion = _conclusion(Protocol())
    conclusion(TestsCollected(1.0, 2))
    first, second = "a/test_b.py::C::test_d[1]", "a/test_b.py::C::test_d[2]"
    conclusion(CaseStarted(1.0, first))
    conclusion(CaseRecorded(1.0, CaseRecord("a.test_b.C.test_d[1]", "passed", first)))
    conclusion(CaseRecorded(1.0, CaseRecord("a.test_b.C.test_d[1]", "failed", first, "teardown")))
    conclusion(CaseEnded(1.0, first))
    conclusion(CaseStarted(1.0, second))
    assert (conclusion.running, conclusion.to_come) == ([second], 1)
    assert [(case.status, case.when) for case in conclusion.cases] == [("failed", "teardown")]
    assert conclusion.conclude(1) == 1
    assert [(case.name, case.status) for case in conclusion.cases] == [
        ("a.test_b.C.test_d[1]", "failed"),
        ("a.test_b.C.test_d[2]", "unfinished"),
    ]


@pytest.mark.parametrize(
    ("status", "shard", "expected"),
    [("failed", 0, ["failed"]), ("failed", 1, ["failed"]), ("skipped", 0, ["skipped"]), ("skipped", 1, [])],
)
def test_a_file_that_skips_is_told_by_one_shard(status: Status, shard: int, expected: list[str]) -> None:
    """All shards collect it; but one that fails has failed in each of them."""
    conclusion = _conclusion(Protocol(shard=(shard, 2)))
    conclusion(CaseRecorded(1.0, CaseRecord("a/test_b.py", status, "a/test_b.py", "collect", "why")))
    assert [case.status for case in conclusion.cases] == expected


def test_a_warning_that_comes_while_a_test_runs_is_told_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed then is taken for the test's output, and thrown away with it."""
    file = tmp_path / "warnings"
    conclusion = _conclusion(Protocol(warnings_file=file))
    conclusion.warn_at_end("no more events")
    assert capsys.readouterr().out == ""
    conclusion.conclude(_NOTHING_RAN)
    assert "WARNING: no more events\n" in capsys.readouterr().out
    assert file.read_text(encoding="utf-8") == "no more events\n"


@pytest.mark.parametrize("outcome", ["passed", "skipped", "failed", "error"])
def test_a_plugin_cannot_turn_failures_into_a_pass(outcome: Status, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, a conftest that sets the session's exit code to 0 makes a target green that has failures."""
    conclusion = _conclusion(Protocol())
    conclusion.add(CaseRecord("a.good", "passed", duration_s=0.1))
    conclusion.add(CaseRecord("a.other", outcome, duration_s=0.1, message="boom"))
    is_bad = outcome in ("failed", "error")
    assert conclusion.conclude(0) == is_bad
    told = "1 case(s) failed, the first is a.other, and the session ended with exit code 0"
    assert (told in capsys.readouterr().out) == is_bad


def test_the_line_begins_at_once_and_other_output_waits() -> None:
    """If this fails, the log of a run that hangs at once is empty, or the first line lacks the result."""
    stream = io.StringIO()
    head = Banner(stream, "what runs")
    head.write("header\n")
    assert stream.getvalue() == "what runs"
    head.end_line(": everything was skipped")
    head.write("more\n")
    head.end_line(": too late")
    assert stream.getvalue() == "what runs: everything was skipped\nheader\nmore\n"


def test_the_banner_behaves_like_the_stream_it_wraps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, pytest, which asks for colours, descriptors and encodings, breaks."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    head = Banner(stream, "")
    assert head.encoding == "utf-8"
    assert not head.isatty()
    print("waits", file=head, flush=True)
    head.end_line()
    stream.seek(0)
    assert stream.read() == "\nwaits\n"
    # Its faulthandler wants the descriptor of standard error.
    monkeypatch.setattr(sys, "stderr", stream)
    with Banner(sys.stdout, "").in_place():
        assert sys.stderr.encoding == "utf-8"
        sys.stderr.flush()
        assert capsys.readouterr().out == ""


def test_errors_come_below_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, an error about a wrong option continues the first line, or the output before it is lost."""
    head = Banner(sys.stdout, "what runs")
    with head.in_place():
        print("waits")
        assert capsys.readouterr().out == "what runs"
        print("wrong", file=sys.stderr)
        assert capsys.readouterr() == ("\nwaits\n", "wrong\n")
    print("after")
    assert capsys.readouterr() == ("after\n", "")

    def run() -> None:
        with Banner(sys.stdout, "what runs").in_place():
            print("waits")
            raise OSError("planted")

    with pytest.raises(OSError, match="planted"):
        run()
    assert capsys.readouterr().out == "what runs\nwaits\n"
