"""Compares the collective calls of ranks: to explain a failure, or to fail a case that has passed by luck.

The ranks that have failed tell their calls when they end; the others are asked when the case is about to be over. With
`--dist-strict-collectives` a rank that has passed tells its calls, too.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dist_testing.core.engine.hooks import CaseStart, WatchedWorld, WorldWatcher
from dist_testing.core.engine.rank_logs import read_tail
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.error_text import ranks_by_text, ranks_text
from dist_testing.core.ground.outcomes import Cause, Kind, Status, Verdict
from dist_testing.hang.call_rules import are_alike, at, disagreement, group_text, inputs_text
from dist_testing.hang.ledger import CALLS, FOR_CALLS, TORCH_LIMITS_MS, Call, CallsMade, limits_of
from dist_testing.hang.watch import collect_ledgers

# Of one case. One difference shifts all calls after it.
_MAX_DIFFERENCES = 3
# For the answers of all ranks; on a quiet machine, only a rank that is stopped or keeps the GIL takes as long. Seconds.
_ANSWER_LIMIT_S = 2.0
# gloo's text, where another rank has sent more than this one expects. It ends the process.
_GLOO_GOT_MORE = "Received data size doesn't match expected size"
# What calls can explain. Other causes have nothing to do with them.
_EXPLAINED = frozenset({Cause.FAILURE, Cause.CRASH, Cause.HANG, Cause.DISAGREEMENT})


def watch(world: WatchedWorld) -> CallComparison | None:
    """Return the comparison for a world; None for threads, whose calls are compared when they make them."""
    return None if world.in_process_of else CallComparison(world)


class CallComparison(WorldWatcher):
    """Explains a failure by calls that differ, and fails a case whose ranks have passed and told different calls."""

    def __init__(self, world: WatchedWorld) -> None:
        super().__init__(world)
        self._limits_ms = limits_of(world.group_limit_s) | TORCH_LIMITS_MS
        self._told: dict[int, CallsMade] = {}
        self._began_ns = 0
        self._requests = 0

    def begin_case(self, start: CaseStart) -> None:
        """Forget the calls of the last case."""
        self._told = {}
        # torch's times are those of the wall clock.
        self._began_ns = int((start.began_s - time.monotonic()) * 1e9) + time.time_ns()

    def on_message(self, rank: int, payload: str) -> None:
        """Note the calls of a rank."""
        self._told[rank] = CALLS.from_wire(payload)

    def before_kill(self, kind: Kind) -> None:
        """Ask the ranks that are left for their calls."""
        self._ask()

    def ranks_settled(self) -> None:
        """Ask the ranks for their calls if they have not all passed."""
        if any(record.reported is Kind.SKIPPED for record in self._world.records):
            self._ask()

    def _ask(self) -> None:
        self._requests = (self._requests + 1) % FOR_CALLS
        fds = {rank: fd for rank, fd in self._world.stacks_fds.items() if rank not in self._told}
        for rank, answer in collect_ledgers(fds, self._requests | FOR_CALLS, _ANSWER_LIMIT_S).items():
            if isinstance(answer, CallsMade):
                calls = tuple(call for call in answer.calls if call.begun_ns >= self._began_ns)
                self._told[rank] = dataclasses.replace(answer, calls=calls)

    def explain(self, result: CaseResult) -> CaseResult:
        """Compare the calls, which may end although they differ, by luck of the backend."""
        found = result.verdict
        passed = [outcome.rank for outcome in result.outcomes if outcome.kind is Kind.PASSED]
        has_passed = found.status is Status.PASSED
        if not has_passed and (found.cause not in _EXPLAINED or found.is_proven):
            return result
        first = first_difference(self._told, self._limits_ms, passed)
        if first is None and found.cause is Cause.CRASH and found.culprit is not None:
            first = got_more(self._told, found.culprit, read_tail(self._world.logs[found.culprit]))
        every = "; ".join(differences(self._told, self._limits_ms)) if has_passed else ""
        # The lines alone fail no case that has passed.
        if first is None or (has_passed and not every):
            return result
        if has_passed:
            told = Verdict(Status.FAILED, Cause.CALLS, every, suspects=first[1])
        else:
            told = dataclasses.replace(found, reason=f"{first[0]}; then {found.reason}", suspects=first[1])
        return dataclasses.replace(result, verdict=told)


class _Lane(NamedTuple):
    """The calls of the ranks of one group, from the first one on."""

    group: str  # name of the group
    complete: frozenset[int]  # the ranks whose record has dropped no call
    calls: Mapping[int, Mapping[int, Call]]  # rank to its calls, by their numbers

    @property
    def counts(self) -> dict[int, int]:
        """Rank to the number of its calls."""
        return {rank: len(calls) for rank, calls in self.calls.items()}

    @property
    def by_number(self) -> Iterator[tuple[int, dict[int, Call]]]:
        """Each number with the calls that have it, by rank."""
        for number in sorted({number for calls in self.calls.values() for number in calls}):
            yield number, {rank: calls[number] for rank, calls in self.calls.items() if number in calls}

    @property
    def mismatch(self) -> tuple[int, dict[int, Call]] | None:
        """The first calls that cannot belong together, with their number."""
        return next((found for found in self.by_number if not are_alike(found[1].values())), None)


def differences(told: Mapping[int, CallsMade], limits_ms: frozenset[int]) -> list[str]:
    """Return where the ranks of a case have made different calls, in one line each, with the first of each group.

    `limits_ms` are those of groups for which the user has named none, in milliseconds. A group with another one is left
    out: a test of limits calls on some ranks only.
    """
    found = []
    for lane in _lanes(told, limits_ms):
        if (mismatch := lane.mismatch) is not None:
            found.append(disagreement(lane.group, *mismatch)[0])
        # A record that has dropped calls may have dropped all of a group.
        elif len(set(lane.counts.values())) > 1 and lane.complete >= lane.calls.keys():
            found.append(_counts(lane))
    return found[:_MAX_DIFFERENCES]


def first_difference(
    told: Mapping[int, CallsMade], limits_ms: frozenset[int], passed: Sequence[int]
) -> tuple[str, tuple[int, ...]] | None:
    """Return the first difference of a case that has failed, in words, and the ranks of which one is to blame.

    A rank that has failed has made fewer calls than the others, so only a rank that has `passed` shows that it has left
    out one.
    """
    lanes = list(_lanes(told, limits_ms))
    found = [(mismatch, lane) for lane in lanes if (mismatch := lane.mismatch or _shift(lane)) is not None]
    if found:
        (number, calls), lane = min(found, key=lambda one: min(call.begun_ns for call in one[0][1].values()))
        text, alone = disagreement(lane.group, number, calls)
        return text, alone or tuple(calls)
    for lane in lanes:
        most = max(lane.counts.values())
        short = [rank for rank in passed if rank in lane.complete and lane.counts.get(rank, most) < most]
        if short and lane.complete >= lane.calls.keys():
            return _counts(lane), tuple(short) if len(short) == 1 < len(lane.counts) - 1 else tuple(lane.counts)
    return None


def got_more(told: Mapping[int, CallsMade], rank: int, log: str) -> tuple[str, tuple[int, ...]] | None:
    """Return what a crash of gloo says, if `rank` got more data than its call expects, and who may be to blame.

    That rank can tell no calls, so the last calls of the others are named. None if its `log` says nothing of it.
    """
    if _GLOO_GOT_MORE not in log:
        return None
    last = {other: made.calls[-1] for other, made in sorted(told.items()) if made.calls}
    sides = ranks_by_text(
        {other: f"{call.operation} of {inputs_text(call)}{at(call.place)}" for other, call in last.items()}
    )
    called = "".join(f"; the last call of {ranks_text(ranks)} is {text}" for text, ranks in sides.items())
    return f"rank {rank} got more data than its call of gloo expects{called}", (rank, *last)


def _counts(lane: _Lane) -> str:
    counts = ranks_by_text({rank: f"{count} call{'s' if count != 1 else ''}" for rank, count in lane.counts.items()})
    made = ", ".join(f"{ranks_text(ranks)} made {count}" for count, ranks in counts.items())
    return f"{made} of {group_text(lane.group)}"


def _shift(lane: _Lane) -> tuple[int, dict[int, Call]] | None:
    """The call that one rank has left out or made too many, if the lines of the test show it.

    Ranks may call one collective in different lines, such as in the branches for a root and for others. But if from one
    call on a rank is a call ahead of all others, or behind them, then it has left one out, or made one too many.
    """
    for number, calls in lane.by_number:
        sides = ranks_by_text({rank: _line(call) for rank, call in calls.items()})
        if len(sides) == 1:
            continue
        alone, *others = sorted(sides.values(), key=len)
        if len(sides) == 2 and len(alone) == 1 and lane.calls.keys() == calls.keys():
            own, theirs = lane.calls[alone[0]], lane.calls[others[0][0]]
            if _follows(own, theirs, number) or _follows(theirs, own, number):
                return number, calls
        return None
    return None


def _follows(behind: Mapping[int, Call], ahead: Mapping[int, Call], number: int) -> bool:
    """Whether the calls of `behind`, from the one after `number` on, are those of `ahead` from `number` on."""
    pairs = [(behind[one + 1], call) for one, call in ahead.items() if one >= number and one + 1 in behind]
    return bool(pairs) and all(_line(theirs) == _line(call) for theirs, call in pairs)


def _line(call: Call) -> str:
    return f"{call.operation} {call.sizes} {call.place}"


def _lanes(told: Mapping[int, CallsMade], limits_ms: frozenset[int]) -> Iterator[_Lane]:
    # The calls of each rank by the name of the group, and by how many groups of this name the rank has made since.
    groups: dict[tuple[str, int], dict[int, list[Call]]] = {}
    members: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    for rank, made in sorted(told.items()):
        newest: dict[str, int] = {}
        for call in made.calls:
            newest[call.group] = max(call.generation, newest.get(call.group, 0))
        own: dict[tuple[str, int], list[Call]] = {(name, 0): [] for name in made.groups}
        for call in made.calls:
            own.setdefault((call.group, newest[call.group] - call.generation), []).append(call)
        for (name, age), calls in own.items():
            groups.setdefault((name, age), {})[rank] = calls
            members.setdefault((name, age), set()).add(made.groups.get(name, ()) if age == 0 else ())
    complete = frozenset(rank for rank, made in told.items() if made.is_complete)
    for key, of_ranks in groups.items():
        has_own_limit = any(call.limit_ms not in limits_ms for calls in of_ranks.values() for call in calls)
        # Two groups can have one name, on ranks that know one of them each.
        if len(members[key]) == 1 and not has_own_limit:
            # torch's number counts the calls of earlier cases, too.
            numbered = {
                rank: dict(enumerate(calls, 1 if rank in complete or not calls else calls[0].number))
                for rank, calls in of_ranks.items()
            }
            yield _Lane(key[0], complete, numbered)
