"""Tells in words what an analysis of ledgers has found: who waits for whom, where, and which rank it comes from."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dist_testing.core.ground.error_text import ranks_by_text, ranks_text
from dist_testing.core.ground.outcomes import GOOD, Cause, Kind, RankOutcome, Verdict
from dist_testing.core.ground.record import Ledger as RankLedger
from dist_testing.core.ground.record import LedgerCall
from dist_testing.hang.analysis import Analysis, Waiting
from dist_testing.hang.blame import blame
from dist_testing.hang.call_rules import at, disagreement, group_text, inputs_text
from dist_testing.hang.ledger import Call, Ledger, WaitKind

# Of a rank's groups, or of its calls that have not ended, in a line of the report.
_MAX_PENDING = 3
# Of ranks in "the fault is on rank 0 or on rank 1".
_MAX_CHOICE = 2
# The start of a headline about ranks that have skipped. The verdict names them with their reasons.
_SKIPPED = re.compile(r"^ranks? [\d, ]+ skipped; ")
# Instead of "at the deadline".
_STUCK = "when no rank could go on any more"


@dataclass(frozen=True, slots=True)
class HangStory:
    """What is known of a hang."""

    analysis: Analysis  # what the story was made from
    # One sentence: which ranks wait, for whom, where; "" if that is not known, such as where a rank has told nothing,
    # or its recorder is off.
    headline: str = ""
    culprits: tuple[int, ...] = ()  # the ranks that the hang comes from; empty if that is not known
    victims: tuple[int, ...] = ()  # the ranks that wait, and cannot be to blame
    suspects: tuple[int, ...] = ()  # without culprits, ranks of which one is to blame


def story_of(analysis: Analysis) -> HangStory:
    """Tell what an analysis has found."""
    if not analysis.waiting:
        return _of_calls(analysis)
    mismatch = next((found for waiting in analysis.waiting.values() for found in waiting.mismatches), None)
    awaited = _awaited(analysis)
    ended = [rank for rank in awaited if analysis.views[rank].ended]
    free = [rank for rank in awaited if rank in analysis.free and rank not in analysis.waiting]
    # What the words of the headline show as the cause.
    shown: Sequence[int] = ()
    if mismatch is not None:
        headline, shown = disagreement(mismatch.group, mismatch.number, _placed(analysis, mismatch.calls))
        culprits, suspects = blame(analysis, shown, never_come=())
    else:
        culprits, suspects = blame(analysis, ended or free, never_come=ended)
        if absent := ended or free:
            # A rank that is right may have ended because it does not wait for the culprit.
            shown = culprits if culprits and set(culprits) <= set(absent) else absent
            headline = _absent(analysis, awaited, shown)
        elif cycle := _cycle(analysis):
            headline = f"{ranks_text(sorted(cycle))} wait for each other: {_each(analysis, cycle)}"
        else:
            no_rank = "no rank can go on: " if analysis.is_proven else ""
            headline = f"{no_rank}{_each(analysis, analysis.waiting)}"
    named = culprits or suspects
    if analysis.is_proven and len(named) < len(analysis.views) and sorted(named) != sorted(shown):
        headline += f"; {_fault(named)}"
    victims = tuple(rank for rank in analysis.waiting if rank not in named)
    return HangStory(analysis, headline, culprits, victims, suspects)


def _fault(ranks: Sequence[int]) -> str:
    if len(ranks) > _MAX_CHOICE:
        return f"the fault is on one of {ranks_text(ranks)}"
    return "the fault is " + " or ".join(f"on rank {rank}" for rank in ranks)


def _of_calls(analysis: Analysis) -> HangStory:
    """Tell which ranks have not begun what others have, if no main thread is known to wait.

    The others wait for it on a device, or by a handle. It proves nothing: it names the culprit.
    """
    ledgers = {rank: view.ledger for rank, view in analysis.views.items() if view.ledger is not None}
    for _, ledger in sorted(ledgers.items()):
        for call in (*ledger.device_calls, *ledger.calls):
            members = ledger.groups.get(call.group)
            if call.is_done or members is None or not set(members) <= ledgers.keys():
                continue
            begun = {other: _begun(ledgers[other], call) for other in members}
            if len({(theirs.operation, theirs.number) for theirs in begun.values() if theirs is not None}) > 1:
                calls = {other: theirs for other, theirs in begun.items() if theirs is not None}
                headline, culprits = disagreement(call.group, call.number, calls)
            elif absent := sorted(other for other, theirs in begun.items() if theirs is None):
                waiting = [other for other in members if other not in absent and not analysis.views[other].ended]
                if not waiting:
                    continue
                who = _each_with(
                    {
                        other: analysis.views[other].ended or f"has not begun it{at(ledgers[other].place)}"
                        for other in absent
                    }
                )
                verb = "wait" if len(waiting) > 1 else "waits"
                headline = f"{who}; {ranks_text(waiting)} {verb} in {_call_text(call)} of {call.backend}"
                culprits = tuple(absent)
            else:
                continue
            victims = tuple(other for other in members if other not in culprits)
            return HangStory(analysis, headline, culprits, victims)
    return HangStory(analysis)


def _begun(ledger: Ledger, call: Call) -> Call | None:
    """A rank's own call of the same number; None if it has not begun it, as far as its record shows."""
    calls = (*ledger.device_calls, *ledger.calls)
    own = [theirs for theirs in calls if (theirs.group, theirs.backend) == (call.group, call.backend)]
    same = [theirs for theirs in own if theirs.number == call.number]
    # What a rank has begun so long ago that its record has dropped it.
    return same[-1] if same else (call if own and own[0].number > call.number else None)


def _awaited(analysis: Analysis) -> dict[int, list[int]]:
    """Rank to those that cannot go on without it, by rank."""
    awaited: dict[int, list[int]] = {}
    for rank, waiting in sorted(analysis.waiting.items()):
        # With several sets of ranks, each of which is enough, no rank in particular is awaited.
        if len(waiting.missing) == 1:
            for other in waiting.missing[0]:
                awaited.setdefault(other, []).append(rank)
    return dict(sorted(awaited.items()))


def _absent(analysis: Analysis, awaited: Mapping[int, Sequence[int]], absent: Sequence[int]) -> str:
    views = {rank: analysis.views[rank] for rank in absent}
    who = _each_with({rank: view.ended or f"{analysis.free[rank]}{at(view.place)}" for rank, view in views.items()})
    waiting = sorted({rank for other in absent for rank in awaited[other]})
    verb = "wait" if len(waiting) > 1 else "waits"
    them = "it" if len(absent) == 1 else "them"
    places = {_what(analysis.waiting[rank]) + at(analysis.views[rank].place) for rank in waiting}
    if len(places) == 1:
        return f"{who}; {ranks_text(waiting)} {verb} for {them} in {places.pop()}"
    return f"{who}; {ranks_text(waiting)} {verb} for {them}: {_each(analysis, waiting)}"


def _cycle(analysis: Analysis) -> list[int]:
    """Ranks of which each waits for the next and the last for the first; empty if there are none."""
    for start in sorted(analysis.waiting):
        path: list[int] = []
        rank: int | None = start
        while rank is not None and rank not in path:
            path.append(rank)
            waiting = analysis.waiting.get(rank)
            following = waiting.missing[0] if waiting is not None and len(waiting.missing) == 1 else frozenset[int]()
            rank = min((other for other in following if other in analysis.waiting), default=None)
        if rank is not None:
            return path[path.index(rank) :]
    return []


def _each(analysis: Analysis, ranks: Iterable[int]) -> str:
    return _each_with(
        {rank: f"in {_what(analysis.waiting[rank])}{at(analysis.views[rank].place)}" for rank in sorted(ranks)}
    )


def _each_with(texts: Mapping[int, str]) -> str:
    return "; ".join(f"{ranks_text(ranks)} {text}" for text, ranks in ranks_by_text(texts).items())


def lines_of(analysis: Analysis) -> Iterator[str]:
    """Yield what each rank did, a line for ranks that did the same."""
    texts = {}
    for rank, view in sorted(analysis.views.items()):
        waiting = analysis.waiting.get(rank)
        if view.ended:
            text = f"{view.ended}, and {view.silence}" if view.silence else view.ended
        elif waiting is None:
            text = f"{analysis.free.get(rank, '')}{at(view.place)}"
        else:
            inputs = f" {inputs_text(waiting.call)}" if waiting.call is not None else ""
            limit = ", with a limit of the test's own" if waiting.ends_by_itself else ""
            text = f"waits in {_what(waiting)}{inputs}{at(view.place)}{limit}"
        if last := _last_done(view.ledger):
            text += f"; the last collective that it ended: {last}"
        if pending := [call for call in _not_shown(view.ledger, waiting) if not call.is_done]:
            shown = ", ".join(f"{_call_text(call)} {inputs_text(call)}" for call in pending[:_MAX_PENDING])
            text += f"; not ended on {pending[0].backend}: {shown}"
        texts[rank] = text
    for text, ranks in ranks_by_text(texts).items():
        yield f"Ledger of {ranks_text(ranks)}: {text}."


def _not_shown(ledger: Ledger | None, waiting: Waiting | None) -> Sequence[Call]:
    """The calls of a rank beside those that its wait is told with."""
    if ledger is None:
        return ()
    return ledger.device_calls if waiting is not None else (*ledger.device_calls, *ledger.calls)


def _last_done(ledger: Ledger | None) -> str:
    """The last call that a rank has ended on each group, the latest first."""
    last: dict[str, str] = {}
    for call in reversed((*ledger.device_calls, *ledger.calls) if ledger is not None else ()):
        if call.is_done:
            last.setdefault(call.group, _call_text(call))
    return ", ".join(list(last.values())[:_MAX_PENDING])


def _call_text(call: Call) -> str:
    return f"{call.operation} #{call.number} of {group_text(call.group)}"


def rank_ledgers(analysis: Analysis) -> tuple[RankLedger, ...]:
    """Return what each rank does, for the record of the case."""
    now_s = time.monotonic()
    # torch's times are those of the wall clock.
    offset_ns = time.monotonic_ns() - time.time_ns()

    def recorded(call: Call) -> LedgerCall:
        begun_s, ended_s = ((at_ns + offset_ns) / 1e9 if at_ns else None for at_ns in (call.begun_ns, call.ended_ns))
        return LedgerCall(
            call.group, call.number, call.backend, call.operation, inputs_text(call), call.is_done, begun_s, ended_s
        )

    ledgers = []
    for rank, view in sorted(analysis.views.items()):
        waiting = analysis.waiting.get(rank)
        state = view.ended or (f"waits in {_what(waiting)}" if waiting else analysis.free.get(rank, ""))
        calls = (*view.ledger.calls, *view.ledger.device_calls) if view.ledger is not None else ()
        place = "" if view.ended else view.place
        ledgers.append(RankLedger(rank, now_s, state, place, tuple(map(recorded, calls))))
    return tuple(ledgers)


def _what(waiting: Waiting) -> str:
    wait, call = waiting.wait, waiting.call
    match wait.kind:
        case WaitKind.RECEIVE:
            return f"{wait.operation} from {f'rank {wait.peer}' if wait.peer >= 0 else 'any rank'}"
        case WaitKind.SEND:
            return f"{wait.operation} to rank {wait.peer}"
        case WaitKind.MONITORED:
            return f"monitored_barrier of {group_text(wait.group)}"
        case WaitKind.MEETING:
            return wait.operation
    if call is None:
        return wait.operation
    # A function of torch can consist of another collective, and some wait for what an earlier call has begun.
    name = call.operation
    if wait.operation not in (call.operation, "wait", "wait_tensor"):
        name = f"{wait.operation} ({call.operation})"
    return f"{name} #{call.number} of {group_text(call.group)}"


def _placed(analysis: Analysis, calls: Mapping[int, Call]) -> dict[int, Call]:
    """The calls by rank, each with the line that still waits in it if nothing else tells its place."""
    placed = {}
    for rank, call in sorted(calls.items()):
        waiting = analysis.waiting.get(rank)
        is_there = not call.place and waiting is not None and waiting.call == call
        placed[rank] = dataclasses.replace(call, place=analysis.views[rank].place) if is_there else call
    return placed


def mark_stuck(outcomes: Sequence[RankOutcome], story: HangStory) -> tuple[RankOutcome, ...]:
    """Return the outcomes with what a proven hang means for the ranks that were stopped because of it."""
    if not story.analysis.is_proven:
        return tuple(outcomes)
    return tuple(
        dataclasses.replace(outcome, summary=_STUCK) if outcome.kind is Kind.HUNG else outcome for outcome in outcomes
    )


def blame_by_ledger(found: Verdict, outcomes: Sequence[RankOutcome], story: HangStory) -> Verdict:
    """Return the verdict on a case, given what the outcomes add up to, and what the ledgers say of a hang."""
    if not story.headline:
        return found
    if found.cause is Cause.DISAGREEMENT and story.analysis.is_proven:
        skips = [f"rank {one.rank} {one.describe()}" for one in outcomes if one.kind is Kind.SKIPPED]
        said = "; ".join([*skips, _SKIPPED.sub("", story.headline)])
        return dataclasses.replace(found, reason=f"{found.cause.value}: {said}")
    failed = [outcome for outcome in outcomes if outcome.kind not in GOOD and outcome.kind is not Kind.STOPPED]
    late = [outcome for outcome in failed if outcome.collateral == "late"]
    # A rank loses its peers when they give up, and one that they have waited for can then come too late itself.
    is_hang = all(outcome.kind is Kind.HUNG or outcome.collateral for outcome in failed) and (
        late or any(outcome.kind is Kind.HUNG for outcome in failed)
    )
    # Ignore a story recorded before the first failure.
    is_story = not late or min(late, key=lambda outcome: outcome.at_s).rank in (*story.analysis.waiting, *story.victims)
    if found.cause not in (Cause.HANG, Cause.FAILURE) or not is_hang or not is_story:
        return found
    return dataclasses.replace(
        found,
        cause=Cause.HANG,
        reason=story.headline,
        culprit=story.culprits[0] if len(story.culprits) == 1 else None,
        failing=(),
        victims=story.victims,
        is_proven=story.analysis.is_proven,
        suspects=story.suspects,
    )
