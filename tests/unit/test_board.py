"""The board on which ranks write their current phase."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dist_testing.process.board import PhaseBoard


@pytest.fixture
def fd() -> Iterator[int]:
    """Memory of a board for three ranks."""
    fd = PhaseBoard.create(3)
    yield fd
    os.close(fd)


def test_every_rank_begins_in_phase_start(fd: int) -> None:
    """If this fails, a rank that never ran has no phase in the report."""
    assert [PhaseBoard(fd, 3).read(rank) for rank in range(3)] == ["start"] * 3


def test_the_runner_reads_what_a_rank_writes(fd: int) -> None:
    """If this fails, the runner does not see a rank's phase, or sees the rest of an earlier, longer one."""
    rank, runner = PhaseBoard(fd, 3), PhaseBoard(fd, 3)
    rank.write(1, "teardown")
    rank.write(1, "call")
    assert [runner.read(number) for number in range(3)] == ["start", "call", "start"]


def test_last_phase_outlives_its_writer(fd: int) -> None:
    """If this fails, the phase of a dead rank is lost, and a report of a crash needs it."""
    pid = os.fork()
    if pid == 0:
        PhaseBoard(fd, 3).write(2, "destroy")
        os._exit(0)
    os.waitpid(pid, 0)
    assert PhaseBoard(fd, 3).read(2) == "destroy"


@pytest.mark.parametrize("nonsense", [b"", b"\xff" * 32, b"<script>", b"line\nbreak", b"x" * 32])
def test_invalid_bytes_are_not_repeated(fd: int, nonsense: bytes) -> None:
    """If this fails, bytes that a rank writes over the board reach terminals and web pages."""
    board = PhaseBoard(fd, 3)
    os.pwrite(fd, nonsense.ljust(32, b"\0"), 32)
    assert board.read(1) == "an unknown phase"
