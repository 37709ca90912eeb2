"""The rank service that tells which calls a rank has made: where they are compared, and where the rank has failed."""

from __future__ import annotations

import os
import time

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.rank.hooks import RankService, ServedRank
from dist_testing.hang.call_details import watch_calls
from dist_testing.hang.ledger import CALLS, CALLS_ADD_ON
from dist_testing.hang.recorder import calls_made


class CallRecord(RankService):
    """Tells which calls a rank has made. Reading the recorder costs some 10 us for each call that it holds."""

    def __init__(self, rank: ServedRank) -> None:
        self._reporter = rank.reporter
        self._in_process = bool(rank.start.request.in_process_of)
        # A process that runs one case only has made all its calls in it, those of its start included.
        self._is_fresh = not rank.start.request.pool and rank.start.fork_server_pid != os.getpid()
        # When the case began, in nanoseconds since 1970.
        self._began_ns = 0

    def case_begin(self, body: CaseBody) -> None:
        """Note which calls belong to earlier cases."""
        # The test may have imported torch only now.
        watch_calls()
        if not self._is_fresh:
            self._began_ns = time.time_ns()

    def case_end(self, body: CaseBody) -> None:
        """Tell the calls of a case that compares them."""
        if body.strict_calls:
            self._tell()

    def close(self) -> None:
        """Tell the calls if the rank has failed: it ends, and cannot be asked any more."""
        if self._reporter.failed and not self._in_process:
            self._tell()

    def _tell(self) -> None:
        self._reporter.extra(CALLS_ADD_ON, CALLS.to_wire(calls_made(self._began_ns)).decode())


# Once, before the fork server forks its ranks.
watch_calls()
