"""Compares the collective calls of ranks that have passed, where the user asks for it: `--dist-strict-collectives`.

The rank service reads torch's flight recorder at the end of each such case, and tells the watcher of the world.
"""

from __future__ import annotations

import dataclasses
import os

from dist_testing.core.engine.hooks import CaseStart, WatchedWorld, WorldWatcher
from dist_testing.core.ground.case import CaseBody, CaseResult
from dist_testing.core.ground.outcomes import Cause, Status, Verdict
from dist_testing.core.rank.hooks import RankService, ServedRank
from dist_testing.hang.call_compare import CALLS, CallsMade, differences
from dist_testing.hang.ledger import TORCH_LIMITS_MS, limits_of
from dist_testing.hang.ledger_thread import calls_since, known_groups, last_record

ADD_ON = "calls"


class CallComparison(WorldWatcher):
    """Fails a case whose ranks have passed and made different calls."""

    def __init__(self, world: WatchedWorld) -> None:
        self._limits_ms = limits_of(world.group_limit_s) | TORCH_LIMITS_MS
        self._told: dict[int, CallsMade] = {}

    def begin_case(self, start: CaseStart) -> None:
        """Forget the calls of the last case."""
        self._told = {}

    def on_message(self, rank: int, payload: str) -> None:
        """Note the calls of a rank."""
        self._told[rank] = CALLS.from_wire(payload)

    def explain(self, result: CaseResult) -> CaseResult:
        """Compare the calls."""
        if result.verdict.status is not Status.PASSED or not (found := differences(self._told, self._limits_ms)):
            return result
        reason = f"{Cause.CALLS.value}: {'; '.join(found)}"
        return dataclasses.replace(result, verdict=Verdict(Status.FAILED, Cause.CALLS, reason))


class CallRecord(RankService):
    """Tells which calls a rank has made. Reading the recorder costs some 10 us for each call that it holds."""

    def __init__(self, rank: ServedRank) -> None:
        self._reporter = rank.reporter
        # A process that runs one case only has made all its calls in it, those of its start included.
        self._is_fresh = not rank.start.request.pool and rank.start.fork_server_pid != os.getpid()
        # The last call of an earlier case.
        self._before = -1

    def case_begin(self, body: CaseBody) -> None:
        """Note which calls belong to earlier cases."""
        if body.strict_calls and not self._is_fresh:
            self._before = last_record()

    def case_end(self, body: CaseBody) -> None:
        """Tell the calls since the case began."""
        if body.strict_calls:
            calls, is_complete = calls_since(self._before)
            made = CallsMade(known_groups(), tuple(calls or ()), is_complete)
            self._reporter.extra(ADD_ON, CALLS.to_wire(made).decode())
