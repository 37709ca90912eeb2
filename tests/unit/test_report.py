"""The report of a failed case: its contents and their order."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

from dist_testing.core.engine.report import failure_headline, failure_report, missing_hardware, tidied
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import UNKNOWN_EXIT_CODE, Cause, Kind, RankOutcome, Status, Verdict
from tests.support.results import result_of

TRACEBACK = 'Traceback (most recent call last):\n  File "test_a.py", line 7, in test_b\nValueError: boom\n'
STACK = """\
Thread 0x00007f00aa (most recent call first):
  File "/lib/threading.py", line 320 in wait

Current thread 0x00007f00bb (most recent call first):
  File "/src/all_reduce.py", line 12 in all_reduce
  File "/src/test_a.py", line 7 in test_b
  File "/lib/_pytest/python.py", line 159 in pytest_pyfunc_call
  File "/lib/pluggy/_callers.py", line 121 in _multicall
"""


def raised(rank: int, at_s: float, **changes: str) -> RankOutcome:
    """Return a rank with an error of its own."""
    outcome = RankOutcome(rank, Kind.RAISED, at_s, summary="ValueError: boom", text=TRACEBACK)
    return replace(outcome, **changes)  # type: ignore[arg-type]  # texts only


def lost(rank: int, at_s: float) -> RankOutcome:
    """Return a rank that lost its peer."""
    summary = "RuntimeError: Connection closed by peer"
    return RankOutcome(rank, Kind.RAISED, at_s, summary=summary, text="victim's traceback", collateral="lost")


_PASSED = RankOutcome(0, Kind.PASSED, 101.0)


@pytest.mark.parametrize(
    ("judged", "told"),
    [
        (result_of([_PASSED, raised(1, 103.25)]), "rank 1 raised ValueError: boom in call; first seen after 3.2 s."),
        # The time is not that of a rank that passed early or was stopped.
        (
            result_of([RankOutcome(0, Kind.STOPPED, 100.5), raised(1, 103.0)]),
            "rank 1 raised ValueError: boom in call; first seen after 3.0 s.",
        ),
        # A leak is found after all ranks passed.
        (result_of([_PASSED], leaked=("sleep 60",)), "children left behind: sleep 60."),
        # No dot stands in the middle of the sentence; an ellipsis stays.
        (
            result_of([raised(0, 101.0, summary="ValueError: no group.")]),
            "rank 0 raised ValueError: no group in call; first seen after 1.0 s.",
        ),
        (
            result_of([raised(0, 101.0, summary="ValueError: more...")]),
            "rank 0 raised ValueError: more... in call; first seen after 1.0 s.",
        ),
    ],
)
def test_the_headline_is_one_line(judged: CaseResult, told: str) -> None:
    """If this fails, a summary, which shows only this line, does not say what happened, or tells an invented time."""
    assert failure_headline(judged) == f"tests/test_a.py::test_b (world of {judged.case.world_size}): {told}"
    assert failure_report(judged).count("sleep 60") <= 1, "the first line has it already"


_FURTHER = raised(0, 104.0, phase="teardown", summary="OSError: disk", text="the disk's traceback")
# Python 3.14 prints the name of each thread, too.
_SAME_STACK = STACK.replace("0x00007f00aa", "0x1 [rank-2]").replace("0x00007f00bb", "0x2 [rank-2]")
_OF_MANY = result_of(
    [
        RankOutcome(0, Kind.PASSED, 101.0),
        lost(1, 101.0),
        lost(2, 102.0),
        raised(3, 104.0, summary="KeyError: 1", text="another traceback"),
        replace(raised(4, 102.0, text="<World rank 4 of 9> at 0x7f4\nboom"), further=(_FURTHER,), more_count=3),
        replace(raised(5, 103.0, text="<World rank 5 of 9> at 0x7f5\nboom"), further=(_FURTHER,)),
        RankOutcome(6, Kind.STOPPED, 104.0, "setup"),
        RankOutcome(7, Kind.STOPPED, 104.0),
        RankOutcome(8, Kind.SKIPPED, 101.0, reason="not here"),
    ],
    logs={3: "log of 3", 4: "log of two", 5: "log of two"},
    stacks={6: STACK, 7: _SAME_STACK, 1: STACK.replace("all_reduce", "broadcast"), 0: "(no answer)"},
    leaked=("sleep 60 (pid 7)", "cat (pid 8)"),
    left=("2 keys are left",),
    notes=("a note",),
)
_REPORT = """\
//t:a_gloo, case tests/test_a.py::test_b (world of 9): rank 4 raised ValueError: boom in call; first seen after 1.0 s.
Victims: ranks 1, 2: each lost a peer in call (RuntimeError); rank 6 was in setup and was stopped by the runner; \
rank 7 was in call and was stopped by the runner (failed because of rank 4).
Rank(s) 0 ended the test without an error.
Rank 8 skipped: not here.
Processes left behind, now killed: sleep 60 (pid 7); cat (pid 8).
2 keys are left.
a note
This case alone: run it

RULE
stacks of rank(s) 6, 7:
Thread (most recent call first):
  File "/lib/threading.py", line 320 in wait

Current thread (most recent call first):
  File "/src/all_reduce.py", line 12 in all_reduce
  File "/src/test_a.py", line 7 in test_b
RULE
stacks of rank(s) 1:
Thread (most recent call first):
  File "/lib/threading.py", line 320 in wait

Current thread (most recent call first):
  File "/src/broadcast.py", line 12 in broadcast
  File "/src/test_a.py", line 7 in test_b
RULE
stacks of rank(s) 0:
(no answer)
RULE
output of rank 3:
log of 3
RULE
rank 3 of 9 also failed: it raised KeyError: 1 in call

another traceback
RULE
output of rank 4:
log of two
RULE
rank 4 of 9 failed first, then rank 5 in the same way: it raised ValueError: boom in call

<World rank 4 of 9> at 0x7f4
boom

then it raised OSError: disk in teardown

the disk's traceback

then it failed 3 more times like this"""


def test_the_whole_report_of_a_case_with_every_kind_of_rank() -> None:
    """If this fails, a rank is missing, equal texts are quoted twice, or the end is not the culprit's own error."""
    text = failure_report(_OF_MANY, target="//t:a_gloo", reproduce="run it")
    assert text == _REPORT.replace("RULE", "-" * 100)
    all_alike = result_of([raised(rank, 101.0 + rank) for rank in range(3)])
    assert "rank 0 of 3 failed first, then all other ranks in the same way" in failure_report(all_alike)


def test_the_only_error_of_a_case_is_quoted() -> None:
    """If this fails, a wait of a rank that no other rank could end has neither its line nor its text in the report."""
    late = replace(raised(1, 102.0, text="the wait's traceback"), collateral="late")
    waits = [RankOutcome(0, Kind.PASSED, 101.0), late, replace(late, rank=2, at_s=103.0, text="a later one")]
    text = failure_report(result_of(waits))
    assert text.endswith("rank 1 of 3 timed out waiting for a peer in call (ValueError)\n\nthe wait's traceback")
    assert "a later one" not in text
    assert "The stacks of the running ranks are below" not in text
    assert "the wait's traceback" not in failure_report(result_of(waits, stacks={0: "running"}))
    assert failure_report(result_of([*waits, raised(3, 102.5)])).endswith(TRACEBACK.rstrip())


def test_a_case_without_victims_does_not_mention_them() -> None:
    """If this fails, the report mentions things that did not happen."""
    text = failure_report(result_of([raised(0, 101.0)]))
    for part in ("Victims", "Rank(s)", "left behind", "This case alone", "stacks of", "output of", "None"):
        assert part not in text
    text = failure_report(result_of([raised(0, 101.0)]), target="//t:x", reproduce="bazel test //t:x")
    assert text.startswith("//t:x, case tests/test_a.py::test_b (world of 1): ")
    assert "This case alone: bazel test //t:x" in text.splitlines()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (Kind.UNREADABLE, {"summary": "not JSON"}),
        (Kind.NEVER_STARTED, {"summary": "no space"}),
        (Kind.HUNG, {}),
        (Kind.SIGNALLED, {"signal": 11}),
    ],
)
def test_every_rank_is_accounted_for(kind: Kind, more: dict[str, Any]) -> None:
    """If this fails, the report is silent about a rank that may be the interesting one."""
    other = RankOutcome(1, kind, 103.0, **more)
    text = failure_report(result_of([raised(0, 102.0), other]))
    assert other.describe() in text
    # A further failure of another rank than the culprit has its line, and not its text.
    peer = failure_report(result_of([raised(0, 102.0), replace(raised(1, 103.0, text="other"), further=(_FURTHER,))]))
    assert "then it raised OSError: disk in teardown" in peer
    assert "the disk's traceback" not in peer


def test_only_the_ends_of_other_tracebacks_are_quoted() -> None:
    """If this fails, tracebacks of other ranks fill the report or lack their last lines, or the culprit's is cut."""
    long = "\n".join(f"line {number}" for number in range(100))
    text = failure_report(result_of([raised(0, 101.0), raised(1, 102.0, text=long)]))
    assert "rank 1 of 2 also failed" in text
    assert "line 99" in text.splitlines()
    assert "line 79" not in text.splitlines()
    assert "... 80 lines left out ..." in text
    own = failure_report(result_of([raised(0, 101.0, text=long)]))
    assert f"\n{long}\n" in own
    assert "left out" not in own


def test_pointers_are_left_out_before_lines_of_code() -> None:
    """If this fails, Python 3.13's pointers push the first line of the test out of another rank's traceback."""
    frame = '  File "x.py", line {}, in f\n    f(1)\n    ~^^^\n'
    fits, too_long = ("".join(map(frame.format, range(count))) + "ValueError: 1" for count in (6, 8))
    for text, is_cut in ((fits, False), (too_long, True)):
        culprit, other = raised(0, 101.0, text=text), raised(1, 102.0, text=f"other\n{text}")
        peer, _, own = failure_report(result_of([culprit, other])).partition("rank 0 of 2 failed first")
        assert ("    ~^^^" not in peer.splitlines()) is is_cut
        assert "    ~^^^" in own.splitlines()
        assert 'File "x.py", line 0, in f' in peer
        assert "left out" not in peer


@pytest.mark.parametrize(("count", "is_cut"), [(0, False), (40, False), (41, True), (1000, True)])
def test_the_last_forty_lines_of_a_log_are_quoted(count: int, is_cut: bool) -> None:
    """If this fails, a long log fills the report, or the user does not learn that there is more."""
    log = "".join(f"log {number}\n" for number in range(count)) or "\n \n"
    text = failure_report(result_of([raised(0, 101.0)], logs={0: log}))
    quoted = [line for line in text.splitlines() if line.startswith("log ")]
    assert quoted == [f"log {number}" for number in range(max(count - 40, 0), count)]
    assert (", last 40 lines:" in text) == is_cut
    # A heading without text looks as if output were lost.
    assert ("output of" in text) == (count > 0)


def test_a_c_stack_is_quoted_without_the_interpreter() -> None:
    """If this fails, Python 3.14's C stack pushes the rank's own output out of the report."""
    frames = [
        '  Binary file "/v/bin/python", at _Py_DumpStack+0x4a [0x49b2f9]',
        '  Binary file "/v/torch/lib/libtorch_cpu.so", at +0x1 [0x7f0e69d9e0f2]',
        '  Binary file "/usr/bin/python3.14" [0x592ead]',
        '  Binary file "/usr/lib/libpython3.14.so.1.0", at Py_RunMain+0x599 [0x73c6e9]',
    ]
    head = "Current thread's C stack trace (most recent call first):"
    log = "\n".join(["last words", head, *frames, *frames[2:] * 40])
    text = failure_report(result_of([RankOutcome(0, Kind.SIGNALLED, 101.0, signal=11)], logs={0: log}))
    assert "last words" in text
    assert [line for line in text.splitlines() if "Binary file" in line] == [frames[1]]


def test_several_hung_ranks_have_no_culprit_and_all_logs() -> None:
    """If this fails, one of several ranks that hung until the deadline is blamed at random."""
    outcomes = [RankOutcome(0, Kind.HUNG, 160.0), RankOutcome(1, Kind.HUNG, 160.0)]
    text = failure_report(result_of(outcomes, logs={0: "log of 0", 1: "log of 1"}))
    assert "failed first" not in text
    assert text.index("log of 0") < text.index("log of 1")
    assert "--dist-timeout" in text


@pytest.mark.parametrize(("limit_s", "word"), [(0.4, "over"), (12.0, "short")])
def test_a_hang_with_less_than_its_own_limit_is_explained_by_the_targets_time(limit_s: float, word: str) -> None:
    """If this fails, a report advises a longer limit for a case that the target's time has cut short."""
    hung = result_of([RankOutcome(0, Kind.HUNG, 101.0)])
    text = failure_report(replace(hung, limit_s=limit_s))
    assert f"The target's time was {word}: it left this case {limit_s:.1f} s of its limit of 60 s" in text
    assert "--dist-timeout" not in text


@pytest.mark.parametrize(
    ("cause", "part"),
    [
        (Cause.HANG, "--dist-timeout"),
        (Cause.INFRASTRUCTURE, "could not be started"),
        (Cause.DISAGREEMENT, "same reason"),
        (Cause.PROMISE, "--config=gpu"),
        (Cause.LEAK, "must end the processes"),
    ],
    ids=lambda value: value.name if isinstance(value, Cause) else "",
)
def test_a_failure_without_a_traceback_is_explained(cause: Cause, part: str) -> None:
    """If this fails, a failure without a traceback has no likely cause and no way out under its headline."""
    judged = Verdict(Status.FAILED, cause, "what happened")
    lines = failure_report(result_of([RankOutcome(0, Kind.PASSED, 101.0)], judged=judged)).splitlines()
    assert "what happened" in lines[0]
    assert any(option in lines[1] for option in part.split("|"))


@pytest.mark.parametrize(
    ("outcome", "part"),
    [
        (RankOutcome(0, Kind.SIGNALLED, 101.0, signal=9), "lacks memory"),
        (RankOutcome(0, Kind.SIGNALLED, 101.0, signal=11), "Native code that faults"),
        (RankOutcome(0, Kind.SIGNALLED, 101.0, signal=24), "the CPU time of its limit"),
        (RankOutcome(0, Kind.EXITED, 101.0, exit_code=3), "os._exit"),
        (RankOutcome(0, Kind.EXITED, 101.0, exit_code=UNKNOWN_EXIT_CODE), "A signal, the kernel"),
    ],
)
def test_an_end_without_an_exception_is_explained_by_its_kind(outcome: RankOutcome, part: str) -> None:
    """If this fails, the text names the kernel for an exit code, or output that does not follow."""
    text = failure_report(result_of([outcome])).splitlines()[1]
    assert part in text
    assert "output" not in text
    (log_head, *_) = failure_report(result_of([outcome], logs={0: "printed"})).splitlines()[1:]
    assert log_head == f"{text} Its last output is below."
    # `sys.exit` has a traceback, which explains it.
    text = failure_report(result_of([replace(outcome, text="E  SystemExit: 0")], logs={0: "printed"}))
    assert outcome.kind is not Kind.EXITED or part not in text
    assert text.endswith("SystemExit: 0")


def test_missing_hardware_names_who_has_asked_for_it() -> None:
    """If this fails, the user does not learn who has promised what, or looks for a promise where there is none."""
    text = missing_hardware("test_x", "Need at least 2 CUDA devices (found 0)", promised="4 GPU(s)")
    assert text.splitlines()[0] == "test_x: promised hardware missing: Need at least 2 CUDA devices (found 0)"
    assert "promises 4 GPU(s), so the case fails" in text
    first, cause, way_out = missing_hardware("test_x", "a reason", promised="").splitlines()
    assert first == "test_x: hardware missing: a reason"
    assert cause.startswith("The option --dist-on-missing=fail asks for")
    assert way_out.endswith("or without the option.")


@pytest.mark.parametrize(
    "module",
    [
        "attach.launcher",
        "core.engine.engine",
        "core.pytest.pytest_rank",
        "core.unittest.continuous",
        "core.unittest.unittest_rank",
        "core.pytest.rank_plugins",
        "core.unittest.process",
        "core.unittest.world_case",
        "core.launch.fork_server",
        "core.rank.bootstrap",
        "hang.ledger_thread",
        "threaded.in_runner",
        "threaded.rank_process",
        "threaded.spawn_threads",
        "threaded.thread_case",
    ],
)
def test_frames_of_the_library_below_the_test_are_left_out(module: str) -> None:
    """The pattern names folders: when a module moves, its frames would fill every report."""
    file = importlib.import_module(f"dist_testing.{module}").__file__
    frames = [
        "Thread 0x1 (most recent call first):",
        '  File "/t/test_a.py", line 2 in test_a',
        f'  File "{file}", line 1 in f',
        '  File "/usr/lib/python3/somewhere.py", line 3 in below',
    ]
    assert tidied("\n".join(frames)).splitlines()[1:] == frames[1:2]
    # A thread without test code has no heading either.
    own = f"Thread 0x2 (most recent call first):\n{frames[2]}"
    test = "\n".join(frames[:2])
    expected = test.replace("Thread 0x1", "Thread")
    assert tidied(f"{own}\n\n{test}") == tidied(f"{test}\n\n{own}") == expected


def test_frame_between_a_test_and_a_collective_is_left_out() -> None:
    """If this fails, stacks end at the collective, and tracebacks show a frame of the library in their middle."""
    file = importlib.import_module("dist_testing.hang.call_details").__file__
    frames = [
        'File "/torch/distributed/distributed_c10d.py", line 1 in all_reduce',
        f'File "{file}", line 1 in collective',
        'File "/t/test_a.py", line 2 in test_a',
    ]
    stack = [f"  {frame}" for frame in frames]
    assert tidied("\n".join(stack)).splitlines() == [frames[0], stack[2]]
    traceback = [line for frame in stack for line in (frame, "    source", "    ^^^^^^")]
    assert tidied("\n".join(traceback)).splitlines() == [frames[0], *traceback[1:3], *traceback[6:]]
