"""Handles of a test's ranks in the runner, in place of the processes and the pipes to them of torch's classes."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable

from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.engine.running_case import RunningCase
from dist_testing.core.ground.outcomes import RankOutcome
from dist_testing.core.unittest.exits import exit_code


class RankHandle:
    """A handle of one rank, from the request for it on.

    A rank that has ended its test counts as ended, although its process still waits for the other ranks.

    Attributes:
        rank: Which rank.
        name: For messages.
        is_signalled: Whether the rank has got a signal by this handle while it ran.
    """

    def __init__(self, running: RunningCase, rank: int) -> None:
        self.rank = rank
        self.name = f"rank {rank}"
        self.is_signalled = False
        self._running: RunningCase | None = running
        self._pid: int | None = None
        self._outcome: RankOutcome | None = None
        self._answers: list[str] = []

    def settle(self, outcome: RankOutcome) -> None:
        """Keep the outcome when the case is over; from now on the handle only reports it."""
        self._pid = self.pid
        self._outcome = outcome
        self._running = None

    @property
    def pid(self) -> int | None:
        """The process id; waits until it is known. None if the process was never started."""
        record = self._wait(lambda record: record.pid is not None)
        return self._pid if record is None else record.pid

    @property
    def exitcode(self) -> int | None:
        """The exit code with which the rank ended its test; a negative one is a signal. None while it runs."""
        record = self._wait(_has_ended, 0.0)
        if record is not None:
            return exit_code(record.outcome()) if _has_ended(record) else None
        return exit_code(self._outcome) if self._outcome is not None else None

    def is_alive(self) -> bool:
        """Return whether the rank still runs its test."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until the rank has ended its test, at most `timeout` seconds, or until the case is over."""
        self._wait(_has_ended, math.inf if timeout is None else timeout)

    def terminate(self) -> None:
        """Send SIGTERM, if the case is not over. The rank's end then counts as one by that signal."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if the case is not over."""
        self._signal(signal.SIGKILL)

    def send(self, event: object) -> None:
        """Ask the rank for its stacks, if it still runs its test. torch has one event only, `GET_TRACEBACK`."""
        del event
        if self._running is not None and self.is_alive():
            self._answers.append(self._running.world.supervisor.stacks_now()[self.rank])

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Return whether there is an answer. Never waits: `send` has waited for the answer."""
        del timeout
        return bool(self._answers)

    def recv(self) -> str:
        """Return the oldest answer, or raise EOFError: nothing was asked, or the rank had ended."""
        if not self._answers:
            raise EOFError(f"{self.name} has not been asked for its stacks, or had ended its test by then")
        return self._answers.pop(0)

    def close(self) -> None:
        """Do nothing: there is no real pipe."""

    def _signal(self, number: int) -> None:
        if self._running is not None:
            self.is_signalled |= self.is_alive()
            self._running.world.supervisor.signal_ranks([self.rank], number)

    def _wait(self, holds: Callable[[RankRecord], bool], limit_s: float = math.inf) -> RankRecord | None:
        """Wait until a condition holds for the rank's record; return the record. None if the case is over."""
        if self._running is None:
            return None
        supervisor = self._running.world.supervisor
        record = supervisor.records[self.rank]
        supervisor.wait_until(lambda: holds(record), limit_s)
        return record


def _has_ended(record: RankRecord) -> bool:
    return record.is_settled or record.has_ended
