"""Emits the events of one case."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

from dist_testing.core.engine.live_output import LiveOutput
from dist_testing.core.engine.running_world import RunningWorld
from dist_testing.core.events.cases import (
    CaseAsked,
    CaseEnded,
    CaseJudged,
    CleanedUp,
    RankOutcomeKnown,
    RankOutput,
    RankPhases,
    RankReady,
    RankStarted,
    RankWarned,
    WorldAsked,
)
from dist_testing.core.events.event import Event, Phase
from dist_testing.core.events.stream import EventStream
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.error_text import summarise


class CaseEvents:
    """Emits the events of one case. Does what costs time only for a sink that wants the event.

    Attributes:
        number: The case's number in the run.
    """

    def __init__(self, stream: EventStream, number: int, case: Case) -> None:
        """Make the emitter of a case, the run's case number `number`. It emits nothing yet."""
        self._stream = stream
        self.number = number
        self._case = case
        self._is_open = False
        self._asked_s = 0.0
        self._world: RunningWorld | None = None
        # By rank: the changes of phase before the case began.
        self._changes_before: Sequence[int] = ()
        self._started: set[int] = set()
        self._ready: set[int] = set()

    def asked(self, limit_s: float) -> None:
        """Emit that the engine has accepted the case, with its limit in seconds."""
        self._asked_s = time.monotonic()
        self._is_open = True
        case = self._case
        self._stream.emit(
            CaseAsked(self._asked_s, self.number, case.name, case.world_size, case.isolation, case.pool, limit_s)
        )

    def world_asked(self, number: int, world: RunningWorld) -> None:
        """Emit that the launcher was asked for world `number` of the run; subscribe to the output of its ranks."""
        self._stream.emit(WorldAsked(time.monotonic(), self.number, number))
        if self._stream.wants(RankOutput):
            world.supervisor.show_output(LiveOutput(world.directory, world.size, self._output))

    def _output(self, rank: int, line: str) -> None:
        self._stream.emit(RankOutput(time.monotonic(), self.number, rank, line))

    def begun_on(self, world: RunningWorld, *, is_new: bool) -> None:
        """Note the ranks that the case is about to begin on. Reused ranks (`is_new=False`) have run another case."""
        self._world = world
        self._changes_before = [0 if is_new else world.board.count(rank) for rank in range(world.size)]
        if not is_new:
            # The events of their first case include their start.
            self._started = self._ready = set(range(world.size))
        if self._stream.wants(RankStarted, RankReady):
            world.supervisor.on_look = self._look

    def emit(self, event: Event) -> None:
        """Emit an event of an add-on. One after the verdict belongs to no case."""
        if self._is_open:
            self._stream.emit(event)

    def _look(self, now_s: float) -> None:
        """Emit which ranks have started or become ready since the last look of the supervisor."""
        if self._world is None or len(self._ready) == self._world.size:
            return
        for record in self._world.supervisor.records:
            if record.pid is not None and record.rank not in self._started:
                self._started.add(record.rank)
                self._stream.emit(RankStarted(now_s, self.number, record.rank, record.pid))
            # The rank's message may arrive before the launcher's.
            if record.is_ready and record.rank in self._started - self._ready:
                self._ready.add(record.rank)
                self._stream.emit(RankReady(now_s, self.number, record.rank))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Emit the phases of all ranks at the end of the block, also after an exception."""
        try:
            yield
        finally:
            self._tell_phases()

    def _tell_phases(self) -> None:
        world = self._world
        if world is None or not self._stream.wants(RankPhases):
            return
        now_s = time.monotonic()
        for rank, before in enumerate(self._changes_before):
            end_s = world.supervisor.records[rank].ended_s or now_s
            phases, lost = world.board.phases(rank, before, self._asked_s, end_s)
            self._stream.emit(RankPhases(now_s, self.number, rank, phases, lost))

    def over_on_threads(self, phases: Mapping[int, tuple[Phase, ...]]) -> None:
        """Emit the phases of ranks that are threads of the runner."""
        now_s = time.monotonic()
        for rank, done in phases.items():
            self._stream.emit(RankPhases(now_s, self.number, rank, done))

    def judged(self, result: CaseResult) -> None:
        """Emit the warnings, outcomes and verdict of the case."""
        self._is_open = False
        number, emit = self.number, self._stream.emit
        now_s = time.monotonic()
        for warning in result.warnings:
            for rank in warning.ranks:
                emit(
                    RankWarned(
                        now_s, number, rank, warning.category, warning.text, warning.filename, warning.line_number
                    )
                )
        for outcome in result.outcomes:
            emit(
                RankOutcomeKnown(
                    now_s,
                    number,
                    outcome.rank,
                    outcome.kind.value,
                    outcome.at_s,
                    outcome.phase,
                    outcome.operation,
                    outcome.describe(),
                    outcome.collateral,
                    outcome.exit_code,
                    outcome.signal,
                )
            )
        found = result.verdict
        emit(
            CaseJudged(
                now_s,
                number,
                found.status.value,
                found.cause.value,
                found.reason,
                found.culprit,
                found.failing,
                found.victims,
            )
        )
        if self._world is None or self._world.supervisor.is_over:
            emit(CleanedUp(now_s, number, result.leaked))
        emit(CaseEnded(now_s, number))

    @contextlib.contextmanager
    def ending_on_error(self) -> Iterator[None]:
        """Emit that the case ended without a verdict if the block raises an exception."""
        try:
            yield
        except BaseException as error:
            self.ended_early(summarise(error))
            raise

    def ended_early(self, why: str) -> None:
        """Emit that the case has ended without a verdict."""
        if self._is_open:
            self._is_open = False
            self._stream.emit(CaseEnded(time.monotonic(), self.number, why))
