"""The rank that a stack belongs to, and the rank that ended the shared process."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from dist_testing.core.engine.stack_dumps import operation_in
from dist_testing.core.ground.errors import DeadlockError
from dist_testing.core.ground.outcomes import Kind, RankOutcome, Status, verdict
from dist_testing.core.process.stacks import stack_of
from dist_testing.threaded.shared_process import (
    blame,
    note_rank,
    read_ranks,
    stacks_by_rank,
    waiting_for_skipped,
)

# Output of faulthandler on request and at a crash, with Python 3.14's thread names.
_DUMP = """Thread 0x00007f00000000a1 (most recent call first):
  File "/a/test_a.py", line 3 in test_it

Thread 0x00007f00000000a2 [rank-1] (most recent call first):
  File "/a/test_a.py", line 4 in test_it

Current thread 0x00007f0000000001 (most recent call first):
  File "/a/main.py", line 1 in main
"""
_CRASH = f"""printed before
Fatal Python error: Segmentation fault

{_DUMP.replace("Current thread", "Thread").replace("Thread 0x00007f00000000a2", "Current thread 0x00007f00000000a2")}
Extension modules: numpy (total: 1)
"""
# Frames of torch, innermost first.
_FRAMES = ("_all_gather", "all_gather", "all_gather_object")
_RANKS = {0x7F00000000A1: 0, 0x7F00000000A2: 1}
_DEADLOCK = f"{DeadlockError.__module__}.{DeadlockError.__qualname__} builtins.RuntimeError"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """The folder of a world whose threads have noted their ranks."""
    return _noted(tmp_path, *(f"{rank} {ident:x} {11 + rank}" for ident, rank in _RANKS.items()))


def _noted(folder: Path, *notes: str) -> Path:
    (folder / "thread-idents").write_text("".join(f"{note}\n" for note in notes), encoding="ascii")
    return folder


def _killed(rank: int) -> RankOutcome:
    return RankOutcome(rank, Kind.SIGNALLED, 1.0, signal=11)


def test_stacks_are_assigned_to_ranks(world: Path) -> None:
    """If this fails, a hang shows one rank's stack as another's."""
    stacks = stacks_by_rank(_DUMP, world)
    assert list(stacks) == [0, 1]
    assert "line 3" in stacks[0]
    assert "line 4" in stacks[1]
    assert "main.py" not in "".join(stacks.values())
    # Equal stacks would look different if what follows one of them were a part of it.
    text = f"{_DUMP.rpartition('Current thread')[0]}Extension modules: numpy (total: 1)\n"
    assert stacks_by_rank(text, world)[1].splitlines()[1:] == ['  File "/a/test_a.py", line 4 in test_it']


@pytest.mark.parametrize("text", ["", "no stacks", "Thread 0x", "Thread 0xzz (most recent call first):", _DUMP[:10]])
def test_incomplete_stacks_belong_to_no_rank(world: Path, text: str) -> None:
    """If this fails, a process that dies while it writes its stacks ends the runner."""
    assert stacks_by_rank(text, world) == {}


def test_crashed_thread_is_the_culprit_and_the_others_are_victims(world: Path) -> None:
    """If this fails, a crash on one rank is blamed on rank 0."""
    outcomes = blame([_killed(0), _killed(1), RankOutcome(2, Kind.PASSED)], world, _CRASH)
    judged = verdict(outcomes)
    assert (judged.culprit, judged.failing, judged.victims) == (1, (), (0,))
    assert "line 4 in test_it" in outcomes[1].text
    assert "Extension modules" not in outcomes[1].text
    assert outcomes[0].describe() == "went down in call with the process that all ranks share"


def test_what_a_rank_has_reported_counts(world: Path) -> None:
    """If this fails, an old crash in the log overrides what a rank itself reported."""
    told = RankOutcome(0, Kind.EXITED, 1.0, exit_code=3, text="os._exit(3)")
    judged = verdict(blame([told, _killed(1)], world, _CRASH))
    assert (judged.culprit, judged.victims) == (0, (1,))
    others = (RankOutcome(0, Kind.RAISED, 1.0, text="boom"), RankOutcome(1, Kind.STOPPED), RankOutcome(2, Kind.HUNG))
    assert blame(others, world, _CRASH) == others


@pytest.mark.parametrize("log", ["", "Fatal Python error: Aborted", _CRASH.replace("0x00007f00000000a2", "0x77")])
def test_unknown_culprit_is_reported_as_unknown(world: Path, log: str) -> None:
    """If this fails, a kill from outside is blamed on a rank without any doubt expressed."""
    for outcome in blame([_killed(0), _killed(1)], world, log):
        assert outcome.kind is Kind.SIGNALLED
        assert not outcome.collateral
        assert "does not show which rank ended it" in outcome.text


def test_waiting_for_a_rank_that_skipped_is_a_disagreement() -> None:
    """If this fails, the first rank that waited is blamed, and the skip is not mentioned."""
    skipped = RankOutcome(0, Kind.SKIPPED, reason="alone")
    waited = RankOutcome(1, Kind.RAISED, 1.0, types=_DEADLOCK, operation="barrier")
    judged = verdict(waiting_for_skipped([skipped, waited]))
    assert judged.status is Status.FAILED
    assert judged.reason.startswith("ranks disagree about a skip")
    assert "rank 1 was in barrier and waited for a rank that had skipped" in judged.reason
    # A skip hides no failed assertion.
    failed = RankOutcome(2, Kind.RAISED, 1.0, types="builtins.AssertionError", text="boom")
    assert waiting_for_skipped((skipped, waited, failed)) == (skipped, waited, failed)


def test_the_rank_is_known_without_the_gil(tmp_path: Path) -> None:
    """If this fails, a crash of a rank that is a thread is blamed on none where Python does not name the thread."""
    native = (
        "SIGABRT(6), PID: 7, Thread 11: \n"
        " frame #0: c10::FatalSignalHandler::stacktraceSignalHandler(bool) + 0x8f (0x7f5d in /v/libc10.so)\n\n"
        "SIGABRT(6), PID: 7, Thread 12: \n"
        " frame #0: c10::FatalSignalHandler::stacktraceSignalHandler(bool) + 0x8f (0x7f5d in /v/libc10.so)\n"
        "frame #1: c10::FatalSignalHandler::fatalSignalHandler(int, siginfo_t*) + 0x2 (0x7f5d in /v/libc10.so)\n\n"
    )
    stack = 'Stack (most recent call first):\n  File "/src/test_a.py", line 9 in crash'
    log = f"{native}Fatal Python error: Aborted\n\n<Cannot show all threads while the GIL is disabled>\n{stack}\n\nmore"
    first, second = blame([_killed(0), _killed(1)], _noted(tmp_path, "0 a1 11", "1 a2 12"), log)
    assert (first.collateral, second.collateral, second.text) == ("lost", "", stack)
    for outcome in blame([_killed(0), _killed(1)], _noted(tmp_path, "0 a1 11"), log):
        assert "does not show which rank ended it" in outcome.text


def test_ranks_record_their_threads(tmp_path: Path) -> None:
    """If this fails, no stack can be assigned to its rank."""
    note_rank(str(tmp_path), 7)
    assert read_ranks(tmp_path) == {threading.get_ident(): 7, threading.get_native_id(): 7}
    note_rank(str(tmp_path), 8)
    numbers = {threading.get_ident(): 8, threading.get_native_id(): 8}
    assert read_ranks(tmp_path) == numbers, "the number of an ended thread can be reused"
    # Test code that writes into the folder does not end the runner.
    (tmp_path / "thread-idents").write_bytes(b"1 zz 1\n\xff\xfe\n12345 1 1\n3 ff 9\n4")
    assert read_ranks(tmp_path) == {0xFF: 3, 9: 3}
    (tmp_path / "thread-idents").unlink()
    assert read_ranks(tmp_path) == {}


def test_the_operation_of_a_stack_is_the_one_that_the_test_called() -> None:
    """If this fails, a report names an inner collective, or none for a rank in the runner, whose stack is our own."""
    first = stack_of(sys._getframe()).splitlines()[1]
    assert f'"{os.path.abspath(__file__)}"' in first
    assert first.endswith("in test_the_operation_of_a_stack_is_the_one_that_the_test_called")
    frames = [f'  File "/x/torch/distributed/distributed_c10d.py", line 5 in {name}' for name in _FRAMES]
    assert operation_in("\n".join([*frames, first])) == "all_gather_object"
    assert operation_in(frames[0]) == ""
