"""Keeps what the events of the engine say of one case, and makes the records of its ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from dist_testing.core.events.cases import (
    CaseAsked,
    CaseEnded,
    CaseJudged,
    FaultHappened,
    RankLedgerRead,
    RankOutcomeKnown,
    RankPhases,
    RankStarted,
)
from dist_testing.core.events.event import fault_in_words
from dist_testing.report.model import CollectiveRecord, FaultRecord, LedgerRecord, RankRecord


@dataclass(slots=True)
class RankedCase:
    """A case of the engine while its events come in.

    Attributes:
        asked: Its first event.
        started: By rank: its process exists.
        ready: By rank: when it was ready, on the clock of the run.
        phases: By rank: its phases.
        outcomes: By rank: its outcome.
        warnings: By rank: its warnings, in one line each.
        ledgers: By rank: its collective ledger.
        faults: Its faults on purpose.
        verdict: What the engine has judged; None before that.
        leaked: Command lines of processes that it left behind.
        wait_began_s: When it began to wait for GPUs; None if it did not.
        gpu_wait_s: How long it waited for them, in seconds.
        gpus: The machine's numbers of its GPUs.
        ended: Its last event; None before that.
    """

    asked: CaseAsked
    started: dict[int, RankStarted] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)
    phases: dict[int, RankPhases] = field(default_factory=dict)
    outcomes: dict[int, RankOutcomeKnown] = field(default_factory=dict)
    warnings: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    ledgers: dict[int, RankLedgerRead] = field(default_factory=dict)
    faults: list[FaultHappened] = field(default_factory=list)
    verdict: CaseJudged | None = None
    leaked: tuple[str, ...] = ()
    wait_began_s: float | None = None
    gpu_wait_s: float = 0.0
    gpus: str = ""
    ended: CaseEnded | None = None

    def ranks(self) -> tuple[RankRecord, ...]:
        """Return what is known of each rank that an event has named."""
        return tuple([self._rank(rank) for rank in sorted(self._known())])

    def _known(self) -> set[int]:
        return {*self.started, *self.ready, *self.phases, *self.outcomes, *self.ledgers}

    def _rank(self, rank: int) -> RankRecord:
        started, told, outcome = self.started.get(rank), self.phases.get(rank), self.outcomes.get(rank)
        said = (outcome.outcome, outcome.description, outcome.phase, outcome.operation) if outcome else ("", "", "", "")
        return RankRecord(
            rank,
            *said,
            pid=started.pid if started else None,
            started_at_s=started.at_s if started else None,
            ready_at_s=self.ready.get(rank),
            seen_at_s=outcome.seen_s if outcome else None,
            phases=told.phases if told else (),
            warnings=tuple(self.warnings.get(rank, ())),
            ledger=_ledger(self.ledgers[rank]) if rank in self.ledgers else None,
        )


def fault_record(event: FaultHappened) -> FaultRecord:
    """Return the record of a fault."""
    by = "the plan" if event.by is None else f"rank {event.by}"
    what = fault_in_words(event.action, event.ranks, event.links, event.rule)
    return FaultRecord(event.at_s, f"{what}, by {by}", event.ranks)


def _ledger(event: RankLedgerRead) -> LedgerRecord:
    calls = sorted(event.calls, key=lambda call: not call.is_done)
    words = tuple(
        f"{call.operation} #{call.number} of group {call.group}, {call.inputs or 'no inputs'}: "
        f"{'ended' if call.is_done else 'not ended'}"
        for call in calls
    )
    # Files of older versions have no times, and those of other programs may have too few.
    timed = [
        CollectiveRecord(f"{call.operation} #{call.number} of group {call.group}", begin_s, end_s, call.is_done)
        for call, (begin_s, end_s) in zip(event.calls, event.times, strict=False)
        if begin_s is not None
    ]
    timed.sort(key=lambda one: one.begin_s)
    return LedgerRecord(event.at_s, event.state, event.place, words, tuple(timed))
