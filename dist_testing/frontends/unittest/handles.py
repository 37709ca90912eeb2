"""The ranks of a test, as the runner sees them: what `multiprocessing.Process` objects are to torch's classes."""

from __future__ import annotations

import math
import signal

from dist_testing.engine.rank_record import RankRecord
from dist_testing.engine.running_world import RunningCase
from dist_testing.frontends.unittest.exits import exit_code
from dist_testing.outcomes import RankOutcome

__all__ = ["RankHandle", "StackPipe"]


class RankHandle:
    """One rank of a test, from when it has been asked for.

    A rank that has ended its test counts as ended, although its process then waits for the other ranks.

    Attributes:
        rank: Which rank.
        name: For messages.
    """

    def __init__(self, running: RunningCase, rank: int) -> None:
        self.rank = rank
        self.name = f"rank {rank}"
        self._running: RunningCase | None = running
        self._pid: int | None = None
        self._outcome: RankOutcome | None = None

    def settle(self, outcome: RankOutcome) -> None:
        """The case is over; from now on the handle only tells how the rank ended."""
        self._pid = self.pid
        self._outcome = outcome
        self._running = None

    @property
    def pid(self) -> int | None:
        """The process; waits until it is known. None if it never came to be."""
        if self._running is not None:
            record = self._record(self._running)
            self._running.world.supervisor.wait_until(lambda: record.pid is not None)
            return record.pid
        return self._pid

    @property
    def exitcode(self) -> int | None:
        """How the rank has ended its test, as an exit code; a negative one is a signal. None while it has not."""
        if self._running is not None:
            record = self._record(self._running)
            self._running.world.supervisor.wait_until(lambda: record.is_settled or record.has_ended, 0.0)
            return exit_code(record.outcome()) if record.is_settled or record.has_ended else None
        return exit_code(self._outcome) if self._outcome is not None else None

    def is_alive(self) -> bool:
        """Whether the rank is still about its test."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until the rank has ended its test, or the case is over.

        Args:
            timeout: Seconds to wait at most; None for the limit of the case.
        """
        if self._running is not None:
            record = self._record(self._running)
            self._running.world.supervisor.wait_until(
                lambda: record.is_settled or record.has_ended, math.inf if timeout is None else timeout
            )

    def terminate(self) -> None:
        """Send SIGTERM, if the case is not over. The rank's end then counts as one by that signal."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if the case is not over."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._running is not None:
            self._running.world.supervisor.signal(self.rank, number)

    def _record(self, running: RunningCase) -> RankRecord:
        return running.world.supervisor.records[self.rank]


class StackPipe:
    """The runner's end of what torch's classes keep a pipe for: ask a rank for its stacks, and read them."""

    def __init__(self, handle: RankHandle, running: RunningCase) -> None:
        self._handle = handle
        self._running = running
        self._answers: list[str] = []

    def send(self, event: object) -> None:
        """Ask the rank, which must not have ended its test. Torch's one event, `GET_TRACEBACK`, is the one question."""
        del event
        if self._handle.is_alive():
            self._answers.append(self._running.world.supervisor.stacks_now()[self._handle.rank])

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is an answer; `send` has waited for it."""
        del timeout
        return bool(self._answers)

    def recv(self) -> str:
        """The oldest answer.

        Raises:
            EOFError: If nothing was asked, or the rank had ended.
        """
        if not self._answers:
            raise EOFError(f"{self._handle.name} has not been asked for its stacks, or had ended its test by then")
        return self._answers.pop(0)

    def close(self) -> None:
        """Nothing is open."""
