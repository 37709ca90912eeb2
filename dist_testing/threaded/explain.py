"""The texts of failures that end a wait: deadlock, time limit, and the failure of another rank."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable

from dist_testing.core.ground.error_text import ranks_text, summarise
from dist_testing.core.ground.errors import CollectiveTimeoutError, DeadlockError, PeerFailedError
from dist_testing.threaded.operation import Failure, RankState, Wait, call_site


def deadlock(members: Collection[RankState], waits: Iterable[Wait]) -> Failure:
    """Return the failure of all waits of a world when no running thread is left that could complete one of them."""
    have_ended = "the only rank of the world waits or has ended"
    if len(members) > 1:
        have_ended = f"all {len(members)} ranks of the world wait or have ended"
    return Failure(
        DeadlockError,
        f"Deadlock: {have_ended}, so no wait can be completed.\n"
        f"{_activity(members, waits)}\n"
        "Most likely a call depends on the rank, or a send or receive has no counterpart.\n"
        "Let all ranks of a group make the same collective calls in the same order, and pair each send with a "
        "receive; a blocking send waits for its receive.",
    )


def timed_out(members: Collection[RankState], waits: Iterable[Wait], wait: Wait, limit_s: float) -> Failure:
    """Return the failure of one of a world's waits, which has reached its time limit in seconds."""
    waiting = _FOREIGN_THREAD if wait.member is None else f"rank {wait.member.rank}"
    return Failure(
        CollectiveTimeoutError,
        f"Time limit of {limit_s:.3g} s reached: {waiting} was {wait_text(wait)}.\n"
        f"{_activity(members, waits)}\n"
        "Most likely a rank is stuck or slow in code outside of its process group.\n"
        "Look at the ranks that are still running; if they only need more time, set a longer group timeout.",
    )


def peer_failed(rank: int, error: BaseException) -> Failure:
    """Return the failure of all operations after a rank of the world has failed with an error."""
    return Failure(
        PeerFailedError,
        f"Rank {rank} has failed: {summarise(error)}\n"
        "The other ranks cannot complete calls of their groups any more; this error is a consequence, not the cause.\n"
        f"Look at the error of rank {rank}.",
        names_call=True,
    )


def wait_text(wait: Wait) -> str:
    """Return what a thread waits for and in which call, such as "waiting for rank 1 in barrier() at ..."."""
    return f"waiting for {wait.operation.missing()} in {wait.call} ({wait.operation.title()})"


def sentence(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


_FOREIGN_THREAD = "a thread that belongs to no rank"


def _activity(members: Iterable[RankState], waits: Iterable[Wait]) -> str:
    """Return what the ranks do, in one line for all ranks that do the same."""
    doing: dict[str, list[int]] = {}
    of_foreign_threads = []
    waiting = set()
    for wait in waits:
        if wait.member is None:
            of_foreign_threads.append(f"  {_FOREIGN_THREAD}: {wait_text(wait)}")
        else:
            waiting.add(wait.member)
            doing.setdefault(wait_text(wait), []).append(wait.member.rank)
    for member in members:
        if member.has_ended:
            doing.setdefault("ended", []).append(member.rank)
        elif member not in waiting:
            frame = sys._current_frames().get(member.ident or 0)
            doing.setdefault(f"running {call_site(frame)}" if frame else "running", []).append(member.rank)
    lines = sorted((sorted(ranks), what) for what, ranks in doing.items())
    return "\n".join([*(f"  {ranks_text(ranks)}: {what}" for ranks, what in lines), *of_foreign_threads])
