"""Tells, for the runner, whose each thread of a process is that ranks share: whose stack, and who ended it."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from dist_testing.core.engine.crash_text import thread_of_signal
from dist_testing.core.ground.errors import DeadlockError
from dist_testing.core.ground.outcomes import CRASHES, GOOD, Kind, RankOutcome

# In the folder of a world whose ranks are threads.
_FILE = "thread-idents"
# Test code can write anything into the file, so only the wording of a report depends on it.
_LINE = re.compile(r"([0-9]{1,4}) ([0-9a-f]{1,16}) ([0-9]{1,10})")
# A thread's stack by faulthandler. The crashed thread is the current one. Python 3.14 adds a name to the first line.
_STACK = re.compile(r"^(Current thread|Thread) 0x([0-9a-f]+)\b.*(?:\n  .*)*", re.MULTILINE)
_NAMELESS = "Stack (most recent call first):"
# faulthandler writes this before the stacks of a crash.
_FATAL = "Fatal Python error: "
_DEADLOCK = f"{DeadlockError.__module__}.{DeadlockError.__qualname__}"


def note_rank(directory: str, rank: int) -> None:
    """Note that the calling thread is rank `rank` of the world whose folder `directory` is."""
    fd = os.open(os.path.join(directory, _FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # In one call of the kernel, so threads do not mix their lines.
        os.write(fd, f"{rank} {threading.get_ident():x} {threading.get_native_id()}\n".encode())
    finally:
        os.close(fd)


def read_ranks(directory: str | os.PathLike[str]) -> dict[int, int]:
    """Return the ranks that the threads of a world have noted, by Python's ident and by the kernel's number.

    A number that was used again belongs to the last rank that had it.
    """
    try:
        with open(os.path.join(directory, _FILE), encoding="ascii", errors="replace") as file:
            found = [match for line in file if (match := _LINE.fullmatch(line.rstrip("\n")))]
    except FileNotFoundError:
        return {}
    # An ident is an address, and larger than any number of the kernel.
    return {number: int(match[1]) for match in found for number in (int(match[2], 16), int(match[3]))}


def stacks_by_rank(text: str, directory: Path) -> dict[int, str]:
    """Split the output of faulthandler of a world's process by rank. `directory` is the world's folder."""
    ranks = read_ranks(directory)
    return {ranks[ident]: stack for ident, _, stack in _threads(text) if ident in ranks}


def blame(outcomes: Sequence[RankOutcome], directory: Path, log: str) -> tuple[RankOutcome, ...]:
    """Return the outcomes of ranks that are threads of one process, from those as if each were a process.

    The rank that ended the process is the culprit, and the ranks that ended with it are victims. `directory` is the
    world's folder, and `log` the standard error of the process.
    """
    crashed = [outcome for outcome in outcomes if outcome.kind in CRASHES]
    stacks = {outcome.rank: outcome.text for outcome in crashed if outcome.text}
    if crashed and not stacks:
        ranks = read_ranks(directory)
        crash = log.rpartition(_FATAL)[2] if _FATAL in log else ""
        stacks = {ranks[ident]: stack for ident, is_current, stack in _threads(crash) if is_current and ident in ranks}
        # Without the GIL, Python shows the stack of the thread that crashed, and not its number.
        if not stacks and (rank := ranks.get(thread_of_signal(log) or 0)) is not None:
            stacks = {rank: _NAMELESS + crash.partition(_NAMELESS)[2].partition("\n\n")[0]}
    return waiting_for_skipped(
        [outcome if outcome not in crashed or outcome.text else _explained(outcome, stacks) for outcome in outcomes]
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


def _explained(outcome: RankOutcome, stacks: Mapping[int, str]) -> RankOutcome:
    if outcome.rank in stacks:
        return dataclasses.replace(outcome, text=stacks[outcome.rank])
    if stacks:
        return dataclasses.replace(outcome, collateral="lost")
    return dataclasses.replace(
        outcome,
        summary="as all ranks of its process",
        text="The ranks are threads of one process, which has ended. Its log does not show which rank ended it.",
    )


def _threads(text: str) -> list[tuple[int, bool, str]]:
    """Return ident, whether it is the current thread, and stack, for each thread."""
    return [(int(found[2], 16), found[1] == "Current thread", found[0]) for found in _STACK.finditer(text)]
