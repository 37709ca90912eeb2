"""Processes with more than a thousand open files: high descriptor numbers work like others."""

from __future__ import annotations

import math
import os
import socket
import struct
import time

from dist_testing import watchdog
from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.outcomes import Kind
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.rank_messages import RankReport, Ready
from dist_testing.core.rank.reporter import send_message
from tests.support.open_files import all_low_numbers_taken


def test_the_last_report_of_a_rank_is_read() -> None:
    """If this fails, a world of five hundred ranks, or a test file with many open files, ends the run."""
    with all_low_numbers_taken():
        ours, theirs = socket.socketpair()
        board_fd = PhaseBoard.create(1)
        board = PhaseBoard(board_fd, 1)
        try:
            record = RankRecord(0, ours, board)
            send_message(theirs, Ready())
            send_message(theirs, RankReport(Kind.RAISED, "call", summary="ValueError: last"))
            theirs.close()
            record.ended(10, 1.0)
            assert (record.outcome().kind, record.outcome().summary) == (Kind.RAISED, "ValueError: last")
        finally:
            board.close()
            for end in (ours, theirs):
                end.close()
            os.close(board_fd)


def test_the_watchdog_learns_that_the_run_is_over() -> None:
    """If this fails, the watchdog dies of an error, and a runner that hangs never ends."""
    with all_low_numbers_taken():
        assert not _has_to_end_run_that_is_over(60)


def test_the_watchdog_accepts_any_timeout() -> None:
    """If this fails, a huge TEST_TIMEOUT breaks the watchdog: no wait of the kernel takes such a number."""
    assert not _has_to_end_run_that_is_over(1e9)


def _has_to_end_run_that_is_over(limit_s: float) -> bool:
    """Return what the watchdog decides after the runner's last message."""
    read, write = os.pipe()
    try:
        os.write(write, struct.pack("d", math.nan))
        return watchdog._wait(os.getpid(), read, time.monotonic() + limit_s)
    finally:
        os.close(read)
        os.close(write)
