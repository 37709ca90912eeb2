"""Processes that have more than a thousand files open: the numbers beyond are as good as others."""

from __future__ import annotations

import math
import os
import socket
import struct
import time

from dist_testing.bazel import watchdog
from dist_testing.engine.rank_record import RankRecord
from dist_testing.outcomes import Kind
from dist_testing.process.board import PhaseBoard
from dist_testing.process.frames import FrameWriter
from dist_testing.process.rank_messages import RankReport, Ready
from tests.support.open_files import all_low_numbers_taken


def test_what_a_rank_said_last_is_read() -> None:
    """A world of five hundred ranks, or a test file with many files, must not end the run."""
    with all_low_numbers_taken():
        ours, theirs = socket.socketpair()
        board_fd = PhaseBoard.create(1)
        board = PhaseBoard(board_fd, 1)
        try:
            record = RankRecord(0, ours, board)
            frames = FrameWriter(theirs)
            frames.send(Ready())
            frames.send(RankReport(Kind.RAISED, "call", summary="ValueError: last"))
            theirs.close()
            record.ended(10, 1.0)
            assert (record.outcome().kind, record.outcome().summary) == (Kind.RAISED, "ValueError: last")
        finally:
            board.close()
            for end in (ours, theirs):
                end.close()
            os.close(board_fd)


def test_the_watchdog_hears_that_the_run_is_over() -> None:
    """It would end by an error of its own, and a runner that hangs would then not be ended by anybody."""
    with all_low_numbers_taken():
        assert not _has_to_end_run_that_is_over(60)


def test_the_watchdog_takes_any_time_to_come() -> None:
    """TEST_TIMEOUT is a user's number; no wait of the kernel is as long as the largest."""
    assert not _has_to_end_run_that_is_over(1e9)


def _has_to_end_run_that_is_over(limit_s: float) -> bool:
    """What the watchdog makes of the runner's last word."""
    read, write = os.pipe()
    try:
        os.write(write, struct.pack("d", math.nan))
        return watchdog._wait(os.getpid(), read, time.monotonic() + limit_s)
    finally:
        os.close(read)
        os.close(write)
