"""Compares the collective calls of ranks that have passed, where the user asks for it: `--dist-strict-collectives`.

The rank service reads torch's flight recorder at the end of each such case, and tells the watcher of the world.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dist_testing.core.engine.hooks import CaseStart, WatchedWorld, WorldWatcher
from dist_testing.core.ground.case import CaseBody, CaseResult
from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.error_text import ranks_by_text, ranks_text
from dist_testing.core.ground.outcomes import Cause, Status, Verdict
from dist_testing.core.rank.hooks import RankService, ServedRank
from dist_testing.hang.call_rules import are_alike, described
from dist_testing.hang.ledger import TORCH_LIMITS_MS, Call, Group, limits_of
from dist_testing.hang.ledger_thread import calls_since, known_groups, last_record
from dist_testing.hang.story import group_text

ADD_ON = "calls"
# Of one case. One difference shifts all calls after it.
_MAX_DIFFERENCES = 3


@dataclass(frozen=True, slots=True)
class CallsMade:
    """The collective calls of a rank in a case that it has passed. The rank sends it before its report.

    Attributes:
        groups: The groups that exist at the end of the case.
        calls: In the order in which they began.
        is_complete: Whether the recorder is on, and has dropped no call.
    """

    groups: tuple[Group, ...]
    calls: tuple[Call, ...]
    is_complete: bool


CALLS: Family[CallsMade] = Family("calls of a rank", 2, (CallsMade,))


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
        """Compare the calls, which may end although they differ, by luck of the backend."""
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


def differences(told: Mapping[int, CallsMade], limits_ms: frozenset[int]) -> list[str]:
    """Return where the ranks of a case have made different calls, in one line each, with the first of each group.

    Args:
        told: Rank to what it has told.
        limits_ms: Limits of groups for which the user has named none, in milliseconds. A group with another one is left
            out: a test of limits calls on some ranks only.
    """
    # The calls of each rank by the name of the group, and by how many groups of this name the rank has made since.
    groups: dict[tuple[str, int], dict[int, list[Call]]] = {}
    members: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    for rank, made in sorted(told.items()):
        known = {group.name: group.ranks for group in made.groups}
        newest: dict[str, int] = {}
        for call in made.calls:
            newest[call.group] = max(call.generation, newest.get(call.group, 0))
        own: dict[tuple[str, int], list[Call]] = {(name, 0): [] for name in known}
        for call in made.calls:
            own.setdefault((call.group, newest[call.group] - call.generation), []).append(call)
        for (name, age), calls in own.items():
            groups.setdefault((name, age), {})[rank] = calls
            members.setdefault((name, age), set()).add(known.get(name, ()) if age == 0 else ())
    complete = {rank for rank, made in told.items() if made.is_complete}
    found = []
    for key, of_ranks in groups.items():
        has_own_limit = any(call.limit_ms not in limits_ms for calls in of_ranks.values() for call in calls)
        # Two groups can have one name, on ranks that know one of them each.
        if len(members[key]) == 1 and not has_own_limit:
            found += [f"{text} of {group_text(key[0])}" for text in _differences(of_ranks, complete)]
    return found[:_MAX_DIFFERENCES]


def _differences(of_ranks: Mapping[int, Sequence[Call]], complete: set[int]) -> Iterator[str]:
    by_number: dict[int, dict[int, Call]] = {}
    for rank, calls in of_ranks.items():
        # torch's number counts the calls of earlier cases, too.
        first = 1 if rank in complete or not calls else calls[0].number
        for number, call in enumerate(calls, first):
            by_number.setdefault(number, {})[rank] = call
    for number, by_rank in sorted(by_number.items()):
        if not are_alike(by_rank.values()):
            by_call = ranks_by_text(described(by_rank))
            made = ", ".join(f"{ranks_text(ranks)} made {text}" for text, ranks in by_call.items())
            yield f"{made} as call #{number}"
            return
    lengths = {rank: len(calls) for rank, calls in of_ranks.items()}
    counts = ranks_by_text({rank: f"{count} call{'s' if count != 1 else ''}" for rank, count in lengths.items()})
    # A record that has dropped calls may have dropped all of a group.
    if len(counts) > 1 and complete >= of_ranks.keys():
        yield ", ".join(f"{ranks_text(ranks)} made {count}" for count, ranks in counts.items())
