"""Runs this library's part of a rank in the process that ranks are forked from, with no test and no peer.

Python speeds up a function while it runs (PEP 659), and writes counters and caches into its code. A fork that is the
first to run a function does this work itself, and copies the pages that it writes to. After a rehearsal it finds the
work done. In a world of 4 this saves each rank 0.4 ms of 14.
"""

from __future__ import annotations

import os
import socket
import sys

from dist_testing.process.board import PhaseBoard
from dist_testing.process.ledger import Group
from dist_testing.process.native_stacks import has_sanitizer
from dist_testing.rank.call_record import CallRecord
from dist_testing.rank.comparison import spare_dtensor
from dist_testing.rank.ledger import LedgerThread
from dist_testing.rank.long_texts import LongTexts
from dist_testing.rank.reporter import FrameWriter, Reporter

# Python 3.11 and later look at a function more closely from its eighth call on.
_TIMES = 10
# What torch's flight recorder tells about one call.
_DUMP = b"""{"entries": [{"collective_seq_id": 1, "input_dtypes": ["Float"], "input_sizes": [[4]], "is_p2p": false,
"pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "record_id": 0,
"timeout_ms": 1}]}"""


def rehearse() -> None:
    """Report a case that passes, as a rank does, to a channel that is closed afterwards."""
    # A fork also has the answer.
    has_sanitizer()
    spare_dtensor()
    for _ in range(_TIMES):
        _report_a_pass()
    if sys.platform == "linux":
        _keep_a_ledger()


def _keep_a_ledger() -> None:
    # glibc keeps the stack of a thread that has ended, and each rank takes it over.
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ledger = LedgerThread()
    with near, far:
        for _ in range(_TIMES):
            ledger.start(far.fileno(), is_fresh=True)
            ledger.stop()
    ledger.close()


def _report_a_pass() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = PhaseBoard.create(1)
        board = PhaseBoard(fd, 1)
        os.close(fd)
        reporter = Reporter(FrameWriter(ours), board, 0, fit=LongTexts("", 0).fit)
        reporter.ready()
        reporter.phase("call")
        calls = CallRecord(is_fresh=True, is_strict=False, limit_s=0.001)
        reporter.calls_made(calls.told(_DUMP, (Group("0", (0,)),)))
        reporter.case_over()
        reporter.done()
        board.close()
