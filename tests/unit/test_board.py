"""The board on which ranks write what they are doing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dist_testing.process.board import PhaseBoard


@pytest.fixture
def fd() -> Iterator[int]:
    """The memory of a board for three ranks."""
    fd = PhaseBoard.create(3)
    yield fd
    os.close(fd)


def test_every_rank_begins_at_the_start(fd: int) -> None:
    """A rank that never ran has a phase, too."""
    assert [PhaseBoard(fd, 3).read(rank) for rank in range(3)] == ["start"] * 3


def test_what_one_writes_the_other_reads(fd: int) -> None:
    """Runner and rank map the same memory; a shorter phase leaves nothing of a longer one."""
    rank, runner = PhaseBoard(fd, 3), PhaseBoard(fd, 3)
    rank.write(1, "teardown")
    rank.write(1, "call")
    assert [runner.read(number) for number in range(3)] == ["start", "call", "start"]


def test_last_phase_outlives_its_writer(fd: int) -> None:
    """It is wanted when the rank is dead."""
    pid = os.fork()
    if pid == 0:
        PhaseBoard(fd, 3).write(2, "destroy")
        os._exit(0)
    os.waitpid(pid, 0)
    assert PhaseBoard(fd, 3).read(2) == "destroy"


@pytest.mark.parametrize("nonsense", [b"", b"\xff" * 32, b"<script>", b"line\nbreak", b"x" * 32])
def test_nonsense_is_not_repeated(fd: int, nonsense: bytes) -> None:
    """A rank can scribble over the board, and the report goes to terminals and pages."""
    board = PhaseBoard(fd, 3)
    os.pwrite(fd, nonsense.ljust(32, b"\0"), 32)
    assert board.read(1) == "an unknown phase"
