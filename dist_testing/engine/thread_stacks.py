"""Finds the stack of each rank that is a thread, and the rank that ended the process."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from dist_testing.errors import DeadlockError
from dist_testing.outcomes import CRASHES, GOOD, Kind, RankOutcome

__all__ = ["blame_thread", "stacks_by_rank", "waiting_for_skipped"]

# First line of a thread's stack by faulthandler. The crashed thread is the current one. Python 3.14 adds a name.
_HEAD = re.compile(r"^(Current thread|Thread) 0x([0-9a-f]+)\b.*$", re.MULTILINE)
# faulthandler writes this before the stacks of a crash.
_FATAL = "Fatal Python error: "
_DEADLOCK = f"{DeadlockError.__module__}.{DeadlockError.__qualname__}"


def stacks_by_rank(text: str, ranks: Mapping[int, int]) -> dict[int, str]:
    """Split the output of faulthandler by rank. `ranks` maps the ident of each thread to its rank."""
    return {ranks[ident]: stack for ident, _, stack in _threads(text) if ident in ranks}


def blame_thread(outcomes: Sequence[RankOutcome], ranks: Mapping[int, int], log: str) -> tuple[RankOutcome, ...]:
    """Mark the rank that ended the process as the culprit, and the ranks that ended with it as victims.

    Args:
        outcomes: One per rank, as if each were a process: every rank that was still running was killed or exited.
        ranks: Thread ident to rank.
        log: The standard error of the process.
    """
    gone = [outcome for outcome in outcomes if outcome.kind in CRASHES and not outcome.text]
    if not gone:
        return tuple(outcomes)
    told = [outcome.rank for outcome in outcomes if outcome.kind in CRASHES and outcome.text]
    stacks = {}
    if not told:
        crash = log.rpartition(_FATAL)[2] if _FATAL in log else ""
        stacks = {ranks[ident]: stack for ident, is_current, stack in _threads(crash) if is_current and ident in ranks}
    culprits = {*told, *stacks}
    return tuple(
        outcome if outcome not in gone else _explained(outcome, culprits, stacks.get(outcome.rank, ""))
        for outcome in outcomes
    )


def waiting_for_skipped(outcomes: Sequence[RankOutcome]) -> tuple[RankOutcome, ...]:
    """Count ranks as stopped if they failed only because they waited for a rank that had skipped.

    A group of threads notices the skip and raises an error at once; ranks that are processes would wait.
    """
    bad = [outcome for outcome in outcomes if outcome.kind not in GOOD]
    waited = [outcome for outcome in bad if outcome.collateral == "lost" or _DEADLOCK in outcome.types.split()]
    if not any(outcome.kind is Kind.SKIPPED for outcome in outcomes) or len(waited) < len(bad):
        return tuple(outcomes)
    return tuple(
        dataclasses.replace(outcome, kind=Kind.STOPPED, summary="waited for a rank that had skipped")
        if outcome in waited
        else outcome
        for outcome in outcomes
    )


def _explained(outcome: RankOutcome, culprits: set[int], stack: str) -> RankOutcome:
    if outcome.rank in culprits:
        return dataclasses.replace(outcome, text=stack)
    if culprits:
        return dataclasses.replace(outcome, collateral="lost")
    return dataclasses.replace(
        outcome,
        summary="as all ranks of its process",
        text="The ranks are threads of one process, which has ended. Its log does not show which rank ended it.",
    )


def _threads(text: str) -> list[tuple[int, bool, str]]:
    """Return ident, whether it is the current thread, and stack, for each thread."""
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads), len(text)][1:]
    found = []
    for head, end in zip(heads, ends, strict=False):
        # An empty line separates the last stack from later text, such as the list of extension modules.
        stack = text[head.start() : end].partition("\n\n")[0]
        found.append((int(head[2], 16), head[1] == "Current thread", stack))
    return found
