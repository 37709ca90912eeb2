"""Collects the stacks of ranks that are still running, and finds the rank of each thread if ranks are threads."""

from __future__ import annotations

import dataclasses
import os
import re
import select
import time
from collections.abc import Callable, Mapping, Sequence

from dist_testing.core.engine.native_stacks import thread_of_signal
from dist_testing.core.ground.errors import DeadlockError
from dist_testing.core.ground.outcomes import CRASHES, GOOD, Kind, RankOutcome
from dist_testing.core.process.stacks import ANSWER_MARK, RankThreads

# The public operation of torch.distributed that a stack by faulthandler goes through, the outermost last.
_OPERATION = re.compile(r"torch/distributed/distributed_c10d\.py\", line \d+ in ([a-z]\w*)")

# faulthandler does not say when it has finished. Silence of this length after the first line counts as the end.
# Seconds.
_QUIET_S = 0.1
# First line of a thread's stack by faulthandler. The crashed thread is the current one. Python 3.14 adds a name.
_HEAD = re.compile(r"^(Current thread|Thread) 0x([0-9a-f]+)\b.*$", re.MULTILINE)
_NAMELESS = "Stack (most recent call first):"
# An empty line separates the last stack from later text, such as the list of extension modules.
_END = "\n\n"
# faulthandler writes this before the stacks of a crash.
_FATAL = "Fatal Python error: "
_DEADLOCK = f"{DeadlockError.__module__}.{DeadlockError.__qualname__}"


def operation_in(stack: str) -> str:
    """Return the operation of torch.distributed that a stack is in, such as "all_reduce"; "" if there is none."""
    operations: list[str] = _OPERATION.findall(stack)
    return operations[-1] if operations else ""


def collect_stacks(fds: Mapping[int, int], ask: Callable[[], None], limit_s: float) -> dict[int, str]:
    """Ask ranks for their stacks by calling `ask`, and read the answers for at most `limit_s` seconds in all.

    `fds` maps a rank to the descriptor of its stacks. The result maps it to its stacks; "" for a rank that did not
    answer.
    """
    answers = {rank: bytearray() for rank in fds}
    by_fd = {fd: rank for rank, fd in fds.items()}
    poller = select.poll()
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    ask()
    deadline = time.monotonic() + limit_s
    while by_fd and (left := deadline - time.monotonic()) > 0:
        everyone_began = all(answers[rank] for rank in by_fd.values())
        events = poller.poll(1000 * (min(left, _QUIET_S) if everyone_began else left))
        if not events:
            break
        for fd, _ in events:
            try:
                data = os.read(fd, 1 << 16)
            except ConnectionError:
                # The rank has ended without reading what it was asked.
                data = b""
            if data:
                # A ledger that comes too late is no stack.
                answers[by_fd[fd]] += b"" if data.startswith(ANSWER_MARK) else data
            else:
                poller.unregister(fd)
                del by_fd[fd]
    return {rank: bytes(answer).decode(errors="replace") for rank, answer in answers.items()}


def stacks_by_rank(text: str, ranks: Mapping[int, int]) -> dict[int, str]:
    """Split the output of faulthandler by rank. `ranks` maps the ident of each thread to its rank."""
    return {ranks[ident]: stack for ident, _, stack in _threads(text) if ident in ranks}


def blame_thread(outcomes: Sequence[RankOutcome], threads: RankThreads, log: str) -> tuple[RankOutcome, ...]:
    """Mark the rank that ended the process as the culprit, and the ranks that ended with it as victims.

    Args:
        outcomes: One per rank, as if each were a process: every rank that was still running was killed or exited.
        threads: The ranks of the threads of the process.
        log: The standard error of the process.
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
