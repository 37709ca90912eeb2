"""The rank service: waits before calls, and tells the runner."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.rank.hooks import RankService, ServedRank
from dist_testing.hang.call_details import before_calls, place_of, watch_calls
from dist_testing.hang.waits import C10D
from dist_testing.perturb.plan import DELAYS, NAME, VARIABLE, Delay, read_plan

# Of all delays of a rank in a case: in milliseconds, and as a share of the limit of the group.
_MOST_MS = 1500
_MOST_SHARE = 0.2


class Delays(RankService):
    """Delays the calls of its rank, or of the ranks that are threads of its process."""

    def __init__(self, rank: ServedRank) -> None:
        request = rank.start.request
        self._reporter = rank.reporter
        self._rank = None if request.in_process_of else rank.start.rank
        self._most_ms = min(_MOST_MS, 1000 * _MOST_SHARE * request.settings.timeout_s)
        # Rank to the number of its calls, and of its milliseconds.
        self._calls: dict[int, int] = {}
        self._waited_ms: dict[int, int] = {}

    def start(self) -> None:
        """Take a place before the calls."""
        self._plan = read_plan(VARIABLE, os.environ.pop(VARIABLE))
        before_calls.append(self._wait)

    def case_begin(self, body: CaseBody) -> None:
        """Count the calls of this case from its begin."""
        watch_calls()
        self._calls = {}
        self._waited_ms = {}

    def _wait(self, operation: str, frame: FrameType) -> None:
        if self._rank is None:
            rank = sys.modules[C10D].get_rank()
        elif threading.current_thread() is threading.main_thread():
            rank = self._rank
        else:
            # The order of threads, and so of their calls, is no part of the seed.
            return
        self._calls[rank] = call = self._calls.get(rank, 0) + 1
        delay_ms = self._plan.delay_ms(rank, call)
        waited_ms = self._waited_ms.get(rank, 0) + delay_ms
        if delay_ms and waited_ms <= self._most_ms:
            self._waited_ms[rank] = waited_ms
            told = Delay(rank, call, delay_ms, operation, place_of(frame.f_code, frame.f_lasti))
            self._reporter.extra(NAME, DELAYS.to_wire(told).decode())
            time.sleep(delay_ms / 1000)
