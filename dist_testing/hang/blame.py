"""Finds from a proven hang the ranks that can have caused it: a pure function, and its reasons.

A rank is a *suspect* if it explains the hang alone: suppose that this rank does whatever the others expect of it, and
look whether all other ranks that wait can move then. The supposition removes the rank's own calls from each call that
members have made differently, and makes the rank one that can move.

If one rank of a program is wrong and the others are right, that rank is a suspect: the others are on the way through a
correct program, in which the one that is furthest behind waits for no other. The analysis never says that a rank cannot
move that can, so it finds this. Hence, if there is one suspect only, it is that rank, and no right rank is ever blamed
alone. Three members of a group that make a call show so that the fourth one, which makes another, is wrong. Two members
that make different calls show nothing more: either can have left out a call, or have made one too many, so both are
suspects. Without any suspect, more than one rank is wrong.

A message that a rank takes from any sender is outside of this: a wrong one can mislead a rank that is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from dist_testing.hang.analysis import Analysis, Waiting, movable_with
from dist_testing.hang.call_rules import are_alike


def blame(
    analysis: Analysis, otherwise: Sequence[int], *, never_come: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks that a hang comes from; and without any such rank, those of which one is to blame.

    If no rank explains the hang alone, it comes from those in `otherwise`. Others wait for the ranks in `never_come`
    although these have ended their case.
    """
    found = suspects(analysis)
    if not found:
        return tuple(otherwise), ()
    if len(found) == 1:
        return found, ()
    # One of two ranks has left out a call, or the other has made one too many. A test that ends too early is so much
    # more frequent that the rank which can never come is named.
    ended = tuple(rank for rank in found if rank in never_come)
    return (ended, ()) if ended else ((), found)


def suspects(analysis: Analysis) -> tuple[int, ...]:
    """Return the ranks that each explain a hang alone; none if several ranks are wrong, or if it is not proven."""
    if not analysis.is_proven:
        return ()
    found = []
    for suspect in sorted(analysis.views):
        needs = {rank: _needs(waiting, suspect) for rank, waiting in analysis.waiting.items()}
        # All other ranks can move if this one does what they expect.
        if needs.keys() <= movable_with([suspect], needs):
            found.append(suspect)
    return tuple(found)


def _needs(waiting: Waiting, suspect: int) -> list[frozenset[int]]:
    """The sets of ranks that are each enough for a rank, if the calls of the suspect do not count."""
    alike = [
        mismatch.missing
        for mismatch in waiting.mismatches
        if are_alike(call for rank, call in mismatch.calls.items() if rank != suspect)
    ]
    return [*waiting.missing, *alike]
