"""What ranks are told when a wait of theirs is in vain."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from dist_testing.error_text import summarise
from dist_testing.errors import CollectiveTimeoutError, DeadlockError, PeerFailedError
from dist_testing.threaded.operation import Failure, Wait, call_site

if TYPE_CHECKING:
    from dist_testing.threaded.members import Member

__all__ = ["deadlock", "peer_failed", "ranks_text", "sentence", "timed_out", "wait_text"]


def deadlock(members: Collection[Member], waits: Iterable[Wait]) -> Failure:
    """Nobody is left who could complete any of the waits."""
    ranks = "the rank" if len(members) == 1 else f"all {len(members)} ranks"
    return Failure(
        DeadlockError,
        "\n".join(
            (
                f"Deadlock: {ranks} of the world wait or have ended, and nobody is left who could go on.",
                *_whereabouts(members, waits),
                "Most likely a call depends on the rank, or a send or receive has no counterpart.",
                "Let all ranks of a group make the same collective calls in the same order, and pair each send with a "
                "receive; a blocking send waits for its receive.",
            )
        ),
    )


def timed_out(members: Collection[Member], waits: Iterable[Wait], wait: Wait, limit_s: float) -> Failure:
    """One of the waits has reached its limit."""
    who = _STRANGER if wait.member is None else f"rank {wait.member.rank}"
    return Failure(
        CollectiveTimeoutError,
        "\n".join(
            (
                f"Nothing came in {limit_s:.3g} s: {who} was {wait_text(wait)}.",
                *_whereabouts(members, waits),
                "Most likely a rank is stuck or slow in code outside of its group.",
                "Look at what the ranks do that run; if they only need longer, give the group a longer timeout.",
            )
        ),
    )


def peer_failed(rank: int, error: BaseException) -> Failure:
    """A rank has failed, and the others will wait in vain."""
    return Failure(
        PeerFailedError,
        f"Rank {rank} has failed: {summarise(error)}\n"
        "No other rank can complete a call of their groups; this error is the consequence, not the cause.\n"
        f"Look at the error of rank {rank}.",
        names_call=True,
    )


def wait_text(wait: Wait) -> str:
    """What a thread waits for, and where."""
    return f"waiting for {wait.operation.missing()} in {wait.call} ({wait.operation.title()})"


def ranks_text(ranks: Iterable[int]) -> str:
    """As in "rank 1" or "ranks 0, 2 and 3"."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def sentence(text: str) -> str:
    """With a capital at the beginning, and the rest as it is."""
    return text[:1].upper() + text[1:]


_STRANGER = "a thread that no rank started"


def _whereabouts(members: Iterable[Member], waits: Iterable[Wait]) -> list[str]:
    """One line for all ranks that do the same."""
    doing: dict[str, list[int]] = {}
    strangers = []
    waiting = set()
    for wait in waits:
        if wait.member is None:
            strangers.append(f"  {_STRANGER}: {wait_text(wait)}")
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
    return [f"  {ranks_text(ranks)}: {what}" for ranks, what in lines] + strangers
