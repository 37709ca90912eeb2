"""Makes the record of one case from its result, and from what the engine sees of its ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dist_testing.core.engine.rank_logs import LiveOutput
from dist_testing.core.engine.running_world import RunningWorld
from dist_testing.core.events.event import EventStream, RankOutput, WorldEnded
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.error_text import summarise
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.ground.record import (
    DIGITS,
    OF_THE_MACHINE,
    CaseRecord,
    Ledger,
    Phase,
    RankRecord,
    Status,
    case_name,
)


class CaseEvents:
    """Emits the output of the ranks of one case, and its record. Does what costs time only for a sink that wants it."""

    def __init__(self, stream: EventStream, case: Case) -> None:
        self._stream = stream
        self._case = case
        self._has_ended = False
        self._began_s = time.monotonic()
        self._world: RunningWorld | None = None
        # By rank: the changes of phase before the case began.
        self._changes_before: Sequence[int] = ()
        # The record of their first case has the start of reused ranks.
        self._is_new = False
        # By rank: its phases, and how many are missing.
        self._phases: dict[int, tuple[Sequence[Phase], int]] = {}

    def begun_on(self, world: RunningWorld, *, is_new: bool) -> None:
        """Note the ranks that the case is about to begin on. Reused ranks (`is_new=False`) have run another case."""
        self._world = world
        self._is_new = is_new
        self._changes_before = [0 if is_new else world.board.count(rank) for rank in range(self._case.world_size)]
        if is_new and self._stream.wants(RankOutput):
            # The first watcher, so before the limits of logs: what is not read then may be gone.
            live = LiveOutput(world.supervisor.logs, self._tell)
            world.resources.callback(live.case_over)
            world.supervisor.watchers["(output)"] = live

    def _tell(self, rank: int, line: str) -> None:
        self._stream.emit(RankOutput(time.monotonic(), rank, line))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Keep the phases of all ranks at the end of the block, also after an exception."""
        try:
            yield
        finally:
            if (world := self._world) is not None and self._stream.wants(WorldEnded):
                now_s = time.monotonic()
                for rank, before in enumerate(self._changes_before):
                    end_s = world.supervisor.records[rank].ended_s or now_s
                    self._phases[rank] = world.board.phases(rank, before, self._began_s, end_s)

    def over_on_threads(self, phases: Mapping[int, tuple[Phase, ...]]) -> None:
        """Keep the phases of ranks that are threads of the runner."""
        self._phases = {rank: (done, 0) for rank, done in phases.items()}

    def judged(self, result: CaseResult) -> None:
        """Emit the record of the case."""
        self._has_ended = True
        if self._stream.wants(WorldEnded):
            self._stream.emit(WorldEnded(time.monotonic(), self._record(result)))

    def _record(self, result: CaseResult) -> CaseRecord:
        found = result.verdict
        status: Status = found.status.value
        if status == "failed" and found.cause.value in OF_THE_MACHINE:
            status = "error"
        return replace(
            self._known(status, found.reason),
            duration_s=round(result.duration_s, DIGITS),
            cause=found.cause.value if found.status.value == "failed" else "",
            culprit=found.culprit,
            failing=found.failing,
            victims=found.victims,
            ranks=tuple([self._rank(outcome, result) for outcome in result.outcomes]),
            ledgers=tuple(map(self._ledger, result.ledgers)),
            faults=tuple(
                replace(fault, at_s=self._after(fault.at_s), asked_s=self._after(fault.asked_s))
                for fault in result.faults
            ),
            properties=tuple(result.facts.items()),
            leaked=result.leaked,
        )

    def _known(self, status: Status, message: str) -> CaseRecord:
        case = self._case
        return CaseRecord(
            case_name(case.name),
            status,
            case.name,
            message=message,
            duration_s=self._after(time.monotonic()),
            began_at_s=round(self._began_s, DIGITS),
            world_size=case.world_size,
            isolation=case.isolation,
        )

    def _after(self, at_s: float) -> float:
        return round(at_s - self._began_s, DIGITS)

    def _rank(self, outcome: RankOutcome, result: CaseResult) -> RankRecord:
        return replace(
            self._seen(outcome.rank),
            outcome=outcome.kind.value,
            description="" if outcome.kind is Kind.PASSED else outcome.describe(),
            phase=outcome.phase,
            operation=outcome.operation,
            collateral=outcome.collateral,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            seen_s=self._after(outcome.at_s) if outcome.at_s else None,
            warnings=tuple(
                f"{warned.category}: {warned.text} ({warned.filename}:{warned.line_number})"
                for warned, ranks in result.warnings.items()
                if outcome.rank in ranks
            ),
        )

    def _seen(self, rank: int) -> RankRecord:
        """Return what the engine has seen of a rank, without its outcome."""
        phases, lost = self._phases.get(rank, ((), 0))
        seen = RankRecord(
            rank,
            phases=tuple([Phase(name, self._after(begin), self._after(end)) for name, begin, end in phases]),
            lost_phases=lost,
        )
        if self._world is None or not self._is_new:
            return seen
        told = self._world.supervisor.records[rank]
        if told.started_s is None:
            return seen
        # The rank's message may have arrived before the launcher's.
        ready_s = None if told.ready_s is None else self._after(max(told.ready_s, told.started_s))
        return replace(seen, pid=told.pid, started_s=self._after(told.started_s), ready_s=ready_s)

    def _ledger(self, ledger: Ledger) -> Ledger:
        calls = [
            call._replace(
                begin_s=None if call.begin_s is None else self._after(call.begin_s),
                end_s=None if call.end_s is None else self._after(call.end_s),
            )
            for call in ledger.calls
        ]
        return replace(ledger, read_s=self._after(ledger.read_s), calls=tuple(calls))

    @contextlib.contextmanager
    def ending_on_error(self) -> Iterator[None]:
        """Emit a record without a verdict if the block raises an exception."""
        try:
            yield
        except BaseException as error:
            self.ended_early(summarise(error))
            raise

    def ended_early(self, why: str) -> None:
        """Emit a record that says why the case has ended without a verdict."""
        if not self._has_ended and self._stream.wants(WorldEnded):
            self._has_ended = True
            seen = map(self._seen, range(self._case.world_size if self._world is not None else 0))
            ranks = tuple([rank for rank in seen if rank.pid is not None or rank.rank in self._phases])
            self._stream.emit(WorldEnded(time.monotonic(), replace(self._known("error", why), ranks=ranks)))
