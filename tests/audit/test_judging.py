"""What the audit makes of records and reports, without running a suite."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import dist_testing.audit
from dist_testing.audit.__main__ import main
from dist_testing.audit.command import Left, Ran, shape
from dist_testing.audit.findings import FAULTS, HOLES, Audit, CaseResult, FaultResult, judge, ranks_named
from dist_testing.audit.hook import with_hook
from dist_testing.audit.hook.record import Plan
from dist_testing.audit.program import parser_for, run_program, show
from dist_testing.audit.seen import WHOLE, CaseSeen, FaultSeen, Seen, seen_in
from dist_testing.audit.show import lines, page
from tests.report.schema_check import check


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("rank 1 of 2 failed first", (1,)),
        ("[rank1]: Traceback", (1,)),
        ("rank: 2 (local_rank: 3), exitcode: -9", (2, 3)),
        ("Process 1 exited with error code 10", (1,)),
        ("-- Process 2 terminated with the following error:", (2,)),
        ("Thread 1 exited with exception:", (1,)),
        ("ranks 0, 3 and 2 did not come", (0, 2, 3)),
        ("\x1b[31mrank\x1b[0m 1", (1,)),
        # Source code and arguments, which pytest shows; pids and sizes.
        ("if dist.get_rank() == 1:", ()),
        ("backend = 'gloo', rank = 0, world_size = 4", ()),
        ("Process 4711 was killed, rank 29500", ()),
        ("process 1.5 s", ()),
        ("Current thread 0x00007f11 (most recent call first):", ()),
        ("subprocess 1 ended", ()),
        ("", ()),
    ],
)
def test_ranks_of_a_report(text: str, ranks: tuple[int, ...]) -> None:
    """Only ranks of the world count, in the forms in which harnesses name them."""
    assert ranks_named(text, 4) == ranks


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("/tmp/tmpa1b2c3d4", "/tmp/tmpzzzz_999", True),
        ("/tmp/suiten_6akvbv", "/tmp/suitex1y2z3w4", True),
        ("/tmp/tmpa1b2c3d4.safetensors", "/tmp/tmpzzzz_999.safetensors", True),
        ("/tmp/checkpoint.tmp_a1b2c3d4", "/tmp/checkpoint.tmp_zzzz_999", True),
        ("/tmp/job-99-a1b2c3d4", "/tmp/job-100-zzzz_999", True),
        ("/tmp/server_99_socket", "/tmp/server_100_socket", True),
        ("/tmp/3f2504e0-4f89-11d3-9a0c-0305e82c3301", "/tmp/7c9e6679-7425-40de-944b-e07fc1f90ae7", True),
        ("/tmp/ipc-3f2504e04f8911d39a0c0305e82c3301", "/tmp/ipc-7c9e6679742540de944be07fc1f90ae7", True),
        ("/dev/shm/torch_99_123456_0", "/dev/shm/torch_100001_7_12", True),
        ("python -c sleep 11", "python -c sleep 7", True),
        ("/tmp/tmpa1b2c3d4", "/tmp/storea1b2c3d4", False),
        ("/tmp/tmpa1b2c3d4", "/dev/shm/tmpa1b2c3d4", False),
        ("/tmp/tmpa1b2c3d4.json", "/tmp/tmpa1b2c3d4.lock", False),
    ],
)
def test_things_left_behind_are_compared_without_random_parts(one: str, other: str, alike: bool) -> None:
    """A fault is not blamed for things that a run without it leaves, too."""
    assert (shape(one) == shape(other)) is alike


def test_left_beyond() -> None:
    """Ports are those of the processes that only the fault left behind."""
    usual = Left(("server 1",), ("127.0.0.1:5",), ("/tmp/cache",))
    assert not Left(("server 2",), ("127.0.0.1:6",), ("/tmp/cache",)).beyond(usual)
    new = Left(("other",), ("127.0.0.1:6",), ("/tmp/new",))
    assert new.beyond(usual) == new


def _record(kind: str, pid: int, ppid: int, t: float, case: str = "t::a", **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "pid": pid, "ppid": ppid, "t": t, "case": case, **fields}


def test_the_result_of_a_rank_does_not_count_beside_that_of_its_harness() -> None:
    """A rank that passes the case as a pytest of its own says nothing about the verdict."""
    seen = seen_in(
        [
            _record("session", 10, 1, 0.0, case=""),
            _record("process", 11, 10, 1.0),
            _record("rank", 12, 11, 2.0, rank=0, world=1, moment="init", backend="gloo"),
            _record("result", 12, 11, 3.0, id="t::a", outcome="passed", text=""),
            _record("result", 10, 1, 4.0, id="t::a", outcome="failed", text="bad"),
            # An orphan of the audit later.
            _record("process", 11, 99, 5.0),
        ]
    )
    case = seen.cases["t::a"]
    assert (case.outcome, case.text, case.world_size, case.tellers, case.ended_s) == ("failed", "bad", 1, 1, 4.0)


def test_ranks_that_are_pytests_all_count() -> None:
    """A skip of one rank and a pass of another is a pass; a failure of any rank is a failure."""

    def outcome(*outcomes: str) -> str:
        results = [
            _record("result", 10 + rank, 1, rank, id="t::a", outcome=one, text="") for rank, one in enumerate(outcomes)
        ]
        return seen_in(results).cases["t::a"].outcome

    assert outcome("skipped", "passed") == outcome("passed", "skipped") == "passed"
    assert outcome("failed", "passed") == outcome("skipped", "failed") == "failed"
    assert outcome("skipped", "skipped") == "skipped"


def test_a_phase_or_an_outcome_of_a_plug_in_that_tells_nothing_is_no_result() -> None:
    """If this fails, pytest-retry ends the audit, or a rank that is killed in its call hides its harness."""
    retried = {"id": "t::a", "text": "", "outcome": "retried", "word": "retried", "phase": "call"}
    set_up = {"id": "t::a", "text": "", "outcome": "passed", "word": "passed", "phase": "setup"}
    passed = set_up | {"phase": "call"}
    case = seen_in(
        [
            _record("result", 10, 1, 1.0, **set_up),
            _record("result", 11, 1, 2.0, **set_up),
            _record("result", 11, 1, 3.0, **retried),
            _record("result", 11, 1, 4.0, **passed),
        ]
    ).cases["t::a"]
    assert (case.outcome, case.word, case.tellers, case.ended_s) == ("passed", "passed", 1, 4.0)


def _ran(case: CaseSeen | None, exit_status: int | None, fault: FaultSeen | None = None) -> Ran:
    seen = Seen({case.id: case} if case else {}, True, fault=fault)
    return Ran(exit_status, 100.0, 100.0, "", Path("log"), Left(), seen)


def _judged(fault: str, ran: Ran) -> FaultResult:
    clean = _ran(CaseSeen("t::a", "passed", world_size=2), 0)
    return judge(Plan(["t::a"], fault, 1, "init"), ran, clean, "t::a", slow_s=5.0, limit_s=20.0)


@pytest.mark.parametrize(
    ("fault", "outcome", "text", "exit_status", "holes"),
    [
        ("raise", "failed", "rank 1 raised", 1, ()),
        ("raise", "failed", "no name", 1, ()),
        ("raise", "failed", "rank 0 raised", 1, ("blamed_other",)),
        ("raise", "passed", "", 0, ("green",)),
        ("kill", "skipped", "", 0, ("green",)),
        ("skip", "skipped", "", 0, ()),
        ("skip", "passed", "", 0, ("green",)),
        ("raise", "failed", "rank 1 raised", 0, ("green",)),
        ("hang", "", "", None, ("slow",)),
    ],
)
def test_holes_of_a_run(fault: str, outcome: str, text: str, exit_status: int | None, holes: tuple[str, ...]) -> None:
    """The exit status decides, because a CI system sees no more; a skip may skip the case."""
    case = CaseSeen("t::a", outcome, text, ended_s=12.0, tellers=1)
    assert _judged(fault, _ran(case, exit_status, FaultSeen(10.0, "barrier", "", False))).holes == holes


@pytest.mark.parametrize(
    ("ended_s", "exit_status", "hit_harness", "noticed_s", "holes", "note"),
    [
        # The harness noticed when its result was known, not when its command ended.
        (16.5, 1, False, 6.5, ("slow",), ""),
        # The command does not end after the failure.
        (11.0, None, False, 1.0, ("slow",), "still running 20 s after the fault"),
        # A session that ended with a rank: a hole if that was another process, a note if it was the harness.
        (None, 1, False, 90.0, ("slow", "ended_harness"), ""),
        (None, -9, True, 90.0, ("slow",), "the process of the harness"),
    ],
)
def test_times_begin_at_the_fault(
    ended_s: float | None,
    exit_status: int | None,
    hit_harness: bool,
    noticed_s: float,
    holes: tuple[str, ...],
    note: str,
) -> None:
    """If this fails, a harness that notices a fault at once is late, or one that never ends is good."""
    case = CaseSeen("t::a", "failed", "rank 1", ended_s=ended_s, tellers=1) if ended_s else None
    found = _judged("raise", _ran(case, exit_status, FaultSeen(10.0, "barrier", "", hit_harness)))
    assert (found.noticed_s, found.holes) == (noticed_s, holes)
    assert note in found.note


def test_ranks_that_end_together_are_all_right() -> None:
    """Threads of one process end with it, so no report can know which of them was killed."""
    records = [_record("rank", 7, 1, rank, rank=rank, world=2, moment="own", backend="gloo") for rank in (0, 1)]
    fault = _record("fault", 7, 1, 2.0, call="barrier", how="")
    case = CaseSeen("t::a", "failed", "rank 0 was killed", ended_s=3.0, tellers=1)
    for known, holes in ((records, ()), (records[1:], ("blamed_other",))):
        assert _judged("kill", _ran(case, 1, seen_in([*known, fault]).fault)).holes == holes


def _hostile() -> Audit:
    name = "t::<script>alert(1)</script>\x1b[31m\u202e\n"
    left = Left((name,), ("127.0.0.1:1",), (name,))
    faults = [
        FaultResult("none", False, outcome="passed", exit_status=0),
        FaultResult("kill", True, name, 1, name, "passed", 0, None, (0,), left, ("green", "left_behind"), name),
        FaultResult("return", False, "not here", 1),
    ]
    cases = [
        CaseResult(name, "passed", 2, faults=faults),
        CaseResult("idle", "passed", 0, "it started no ranks", ("ran_nothing",)),
    ]
    return Audit(["python", name], 0, 1.0, 30.0, 120.0, 9.0, cases, [name])


def test_texts_of_a_suite_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the page nor the terminal takes markup or control characters from a suite."""
    made = page(_hostile(), made_wall_s=0.0)
    assert "<script" not in made
    assert "&lt;script&gt;" in made
    assert "3 holes" in made
    assert not re.search("[\x1b\u202e]", made)
    show(lines(_hostile()))
    told = capsys.readouterr().out.splitlines()
    assert not [line for line in told if re.search("[\x00-\x1f\u202e]", line)]
    assert told[-1] == "3 holes: 1 fault in 1 case, 9.00 s"


def test_names_that_the_output_cannot_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, an audit of an hour ends in a traceback before its JSON is written."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", output)

    def run(*_: object) -> int:
        show(["\N{SNOWMAN}"])
        return 1

    assert run_program(parser_for("audit", None), ["--", "true"], run) == 1
    assert output.buffer.getvalue() == b"\\u2603\n"


def test_the_schema_knows_every_name() -> None:
    """The names of faults and holes in the published schema are those of the code."""
    file = Path(dist_testing.audit.__file__).with_name("audit.schema.json")
    schema = json.loads(file.read_text(encoding="utf-8"))
    check(json.loads(json.dumps(_hostile().to_json())), schema, "audit")
    case = schema["properties"]["cases"]["items"]["properties"]
    fault = case["faults"]["items"]["properties"]
    assert set(fault["fault"]["enum"]) == {"none", *FAULTS}
    assert {*fault["holes"]["items"]["enum"], *case["holes"]["items"]["enum"]} == set(HOLES)


def test_an_environment_that_a_harness_makes_keeps_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own PYTHONPATH comes after the hook's folder; names in bytes stay as they are."""
    monkeypatch.setenv("DIST_TESTING_AUDIT", "/run")
    monkeypatch.setenv("DIST_TESTING_AUDIT_BOOTSTRAP", "/boot")
    assert with_hook({"PYTHONPATH": "src"}) == {
        "DIST_TESTING_AUDIT": "/run",
        "DIST_TESTING_AUDIT_BOOTSTRAP": "/boot",
        "PYTHONPATH": "/boot:src",
    }
    assert with_hook({"PYTHONPATH": ":src"})["PYTHONPATH"] == "/boot::src", "an empty entry is the working directory"
    assert with_hook({})["PYTHONPATH"] == "/boot"
    assert with_hook({b"A": b"1"}) == {b"A": b"1"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "no test command is given"),
        (["--"], "no test command is given"),
        (["--faults=rais", "--", "x"], "Did you mean 'raise'?"),
        (["--faults=", "--", "x"], "there is no fault ''"),
        (["--rank=-1", "--", "x"], "--rank=-1: expected the number of a rank"),
        (["--limit=0", "--", "x"], "--limit=0: expected a number of seconds above 0"),
        (["--slow=nan", "--", "x"], "--slow=nan"),
        (["--suite-limit=1e99", "--", "x"], "--suite-limit=1e99"),
        (["--json=/nowhere/a.json", "--", "x"], "/nowhere/a.json: cannot be written"),
        (["--page=/", "--", "x"], "/: cannot be written"),
        (["--logs=/dev/null/x", "--", "x"], "/dev/null/x"),
    ],
)
def test_wrong_command_lines(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is refused before anything runs, with a text of three parts."""
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert text in told
    assert len(told.strip().splitlines()) == 3, told


def test_an_audit_inside_an_audit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A test of an audited suite that audits is refused: two faults would come."""
    monkeypatch.setenv("DIST_TESTING_AUDIT", "/run")
    assert main(["--", "x"]) == 2
    assert "belongs to an audit already" in capsys.readouterr().err


def test_the_whole_command_is_a_case() -> None:
    """Without pytest and unittest, all ranks belong to one case."""
    seen = seen_in([_record("rank", 5, 1, 0.0, case="", rank=1, world=2, moment="own", backend="gloo")])
    assert seen.cases[WHOLE].ranks == {1: {"own"}}
