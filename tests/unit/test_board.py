"""The board on which ranks write their current phase."""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_testing.core.process.board import ENTRIES, PhaseBoard

_SIZE = 3
# A rank's part of the memory: a count, then time and name of each change.
_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<d32s")
_RANK_BYTES = _COUNT.size + ENTRIES * _ENTRY.size


@pytest.fixture
def fd() -> Iterator[int]:
    """The memory of a board for three ranks."""
    fd = PhaseBoard.create(_SIZE)
    yield fd
    os.close(fd)


def _scribble(fd: int, rank: int, number: int, at_s: float, name: bytes) -> None:
    """Write an entry as a rank that does as it likes."""
    os.pwrite(fd, _ENTRY.pack(at_s, name), _RANK_BYTES * rank + _COUNT.size + number * _ENTRY.size)


def test_the_runner_reads_what_a_rank_writes(fd: int) -> None:
    """If this fails, the runner does not see a rank's phase, or not that of a dead one, which a report needs."""
    pid = os.fork()
    if pid == 0:
        rank = PhaseBoard(fd, _SIZE)
        # The shorter name must not end with the rest of the longer one.
        rank.write(1, "teardown")
        rank.write(1, "call")
        # A rank of a pool that waits for its next case is known by what it did last.
        rank.write(1, "")
        rank.write(1, "")
        os._exit(0)
    os.waitpid(pid, 0)
    runner = PhaseBoard(fd, _SIZE)
    assert [runner.read(number) for number in range(_SIZE)] == ["start", "call", "start"]
    # A rank can write zeros, too.
    os.pwrite(fd, b"\0" * _RANK_BYTES, _RANK_BYTES)
    assert runner.read(1) == "an unknown phase"
    # One that truncates every file it can find must not kill the runner by SIGBUS.
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)


@pytest.mark.parametrize("nonsense", [b"\xff" * 32, b"<script>", b"line\nbreak", b"x" * 32])
def test_invalid_bytes_are_not_repeated(fd: int, nonsense: bytes) -> None:
    """If this fails, bytes that a rank writes over the board reach terminals and web pages."""
    board = PhaseBoard(fd, _SIZE)
    now_s = time.monotonic()
    _scribble(fd, 1, 0, now_s, nonsense)
    assert board.read(1) == "an unknown phase"
    assert board.phases(1, 0, 0.0, math.inf) == ((), 0)


def test_phases_of_a_case_have_their_times(fd: int) -> None:
    """Each ends where the next begins, at the word that the rank is done, or when the case is over."""
    board = PhaseBoard(fd, _SIZE)
    # The ranks of a pool write on one board for all their cases.
    board.write(1, "setup")
    before = board.count(1)
    begin_s = time.monotonic()
    for phase in ("call", "", "destroy"):
        board.write(1, phase)
    end_s = time.monotonic()
    phases, lost = board.phases(1, before, begin_s, end_s)
    assert lost == 0
    assert [phase.name for phase in phases] == ["call", "destroy"]
    times = [begin_s, phases[0].begin_s, phases[0].end_s, phases[1].begin_s, phases[1].end_s, end_s]
    assert times == pytest.approx(sorted(times), abs=1e-6)
    assert phases[1].end_s == pytest.approx(end_s, abs=1e-6)
    assert phases[0].end_s <= phases[1].begin_s


@pytest.mark.parametrize("written", [ENTRIES - 1, ENTRIES, ENTRIES + 1, 5 * ENTRIES + 3])
def test_the_last_phases_are_kept_and_the_others_counted(fd: int, written: int) -> None:
    """A loop of sub-tests changes the phase any number of times, and a report must not pass for complete."""
    board = PhaseBoard(fd, _SIZE)
    names = [f"phase {'abcdefghij'[number % 10]}" for number in range(written)]
    for name in names:
        board.write(0, name)
    phases, lost = board.phases(0, 1, 0.0, time.monotonic())
    assert [phase.name for phase in phases] == names[-ENTRIES:]
    assert lost == max(0, written - ENTRIES)
    assert board.read(0) == names[-1]


@pytest.mark.parametrize("at_s", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_a_phase_at_an_impossible_time_is_left_out(fd: int, at_s: float) -> None:
    """A torn write gives any number; a trace that ends at infinity opens nowhere."""
    board = PhaseBoard(fd, _SIZE)
    board.write(1, "setup")
    board.write(1, "call")
    _scribble(fd, 1, 1, at_s, b"setup")
    phases, _ = board.phases(1, 0, 0.0, time.monotonic())
    assert [phase.name for phase in phases] == ["start", "call"]
    assert phases[0].end_s == phases[1].begin_s


@given(
    memory=st.binary(min_size=_RANK_BYTES, max_size=_RANK_BYTES),
    count=st.integers(0, 2**64 - 1),
    since=st.integers(0, 2**64 - 1),
)
def test_whatever_is_in_the_memory_the_answer_is_bounded(memory: bytes, count: int, since: int) -> None:
    """The runner reads what test code can write."""
    fd = PhaseBoard.create(1)
    try:
        os.pwrite(fd, _COUNT.pack(count) + memory[_COUNT.size :], 0)
        board = PhaseBoard(fd, 1)
        phases, lost = board.phases(0, since, 1.0, 2.0)
        assert len(phases) <= ENTRIES
        assert 0 <= lost <= 10**9
        assert all(1.0 <= phase.begin_s <= phase.end_s <= 2.0 for phase in phases)
        assert len(board.read(0)) <= 32
        # A rank goes on with whatever it finds.
        board.write(0, "call")
        assert board.read(0) == "call"
        board.close()
    finally:
        os.close(fd)
