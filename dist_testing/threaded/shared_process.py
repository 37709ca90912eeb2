"""Tells, for the runner, whose each thread of a process is that ranks share: whose stack, and who ended it."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dist_testing.core.engine.crash_text import thread_of_signal
from dist_testing.core.ground.errors import DeadlockError
from dist_testing.core.ground.outcomes import CRASHES, GOOD, Kind, RankOutcome

# In the folder of a world whose ranks are threads.
_FILE = "thread-idents"
# Test code can write anything into the file, so only the wording of a report depends on it.
_LINE = re.compile(r"([0-9]{1,4}) ([0-9a-f]{1,16}) ([0-9]{1,10})")
# First line of a thread's stack by faulthandler. The crashed thread is the current one. Python 3.14 adds a name.
_HEAD = re.compile(r"^(Current thread|Thread) 0x([0-9a-f]+)\b.*$", re.MULTILINE)
_NAMELESS = "Stack (most recent call first):"
# An empty line separates the last stack from later text, such as the list of extension modules.
_END = "\n\n"
# faulthandler writes this before the stacks of a crash.
_FATAL = "Fatal Python error: "
_DEADLOCK = f"{DeadlockError.__module__}.{DeadlockError.__qualname__}"


def note_rank(directory: str, rank: int) -> None:
    """Note that the calling thread is rank `rank` of the world whose folder `directory` is."""
    fd = os.open(os.path.join(directory, _FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{rank} {threading.get_ident():x} {threading.get_native_id()}\n".encode())
    finally:
        os.close(fd)


class RankThreads(NamedTuple):
    """The ranks of the threads of a process. A number that was used again belongs to the last rank that had it.

    Attributes:
        idents: Python's ident of a thread to its rank.
        natives: The kernel's number of a thread, which torch prints, to its rank.
    """

    idents: dict[int, int]
    natives: dict[int, int]


def read_ranks(directory: str | os.PathLike[str]) -> RankThreads:
    """Return the ranks that the threads of a world have noted; none if no thread has."""
    try:
        with open(os.path.join(directory, _FILE), encoding="ascii", errors="replace") as file:
            found = [match for line in file if (match := _LINE.fullmatch(line.rstrip("\n")))]
    except FileNotFoundError:
        found = []
    return RankThreads(
        {int(match[2], 16): int(match[1]) for match in found}, {int(match[3]): int(match[1]) for match in found}
    )


def blame(outcomes: Sequence[RankOutcome], directory: Path, log: str) -> tuple[RankOutcome, ...]:
    """Return the outcomes of ranks that are threads of one process, from those as if each were a process.

    `directory` is the world's folder, and `log` the standard error of the process.
    """
    return waiting_for_skipped(blame_thread(outcomes, read_ranks(directory), log))


def stacks_by_rank(text: str, directory: Path) -> dict[int, str]:
    """Split the output of faulthandler of a world's process by rank. `directory` is the world's folder."""
    ranks = read_ranks(directory).idents
    return {ranks[ident]: stack for ident, _, stack in _threads(text) if ident in ranks}


def blame_thread(outcomes: Sequence[RankOutcome], threads: RankThreads, log: str) -> tuple[RankOutcome, ...]:
    """Mark the rank that ended the process as the culprit, and the ranks that ended with it as victims.

    In `outcomes` every rank that was still running was killed or exited, as if each were a process.
    """
    gone = [outcome for outcome in outcomes if outcome.kind in CRASHES and not outcome.text]
    if not gone:
        return tuple(outcomes)
    told = [outcome.rank for outcome in outcomes if outcome.kind in CRASHES and outcome.text]
    stacks = {}
    if not told:
        ranks = threads.idents
        crash = log.rpartition(_FATAL)[2] if _FATAL in log else ""
        stacks = {ranks[ident]: stack for ident, is_current, stack in _threads(crash) if is_current and ident in ranks}
        # Without the GIL, Python shows the stack of the thread that crashed, and not its number.
        if not stacks and (rank := threads.natives.get(thread_of_signal(log) or 0)) is not None:
            stacks = {rank: f"{_NAMELESS}{crash.partition(_NAMELESS)[2].partition(_END)[0]}"}
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
        stack = text[head.start() : end].partition(_END)[0]
        found.append((int(head[2], 16), head[1] == "Current thread", stack))
    return found
