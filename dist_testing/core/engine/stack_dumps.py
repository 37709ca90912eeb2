"""Collects the stacks of ranks that are still running."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Mapping, Sequence

from dist_testing.core.engine.hooks import WatchedWorld
from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.procfs import STOPPED
from dist_testing.core.process.stacks import ANSWER_MARK, STACKS_SIGNAL

# The public operation of torch.distributed that a stack by faulthandler goes through, the outermost last.
_OPERATION = re.compile(r"torch/distributed/distributed_c10d\.py\", line \d+ in ([a-z]\w*)")

# faulthandler does not say when it has finished. Silence of this length after the first line counts as the end.
# Seconds.
_QUIET_S = 0.1


def ask_for_stacks(world: WatchedWorld, records: Sequence[RankRecord], limit_s: float) -> dict[int, str]:
    """Return rank to stacks, or to why there are none, after at most `limit_s` seconds."""
    states = {record.rank: record.kernel_state for record in records}
    # A stopped process answers only after SIGCONT, and one that another process traces when that one lets it.
    asked = [rank for rank, state in states.items() if not state.startswith(STOPPED)]
    # If ranks are threads, rank 0 answers for all.
    fds = {rank: world.stacks_fds[rank] for rank in (asked and [0] if world.in_process_of else asked)}
    stacks = collect_stacks(fds, lambda: world.signal_ranks(list(fds), STACKS_SIGNAL), limit_s) if fds else {}
    if owner := world.in_process_of:
        split = add_on_named(owner, "the stacks of ranks that are threads").load("stacks_by_rank")
        stacks = split(stacks.get(0, ""), world.directory)
    return {
        rank: stacks.get(rank) or f"no answer; its state is {state or 'not known'}" for rank, state in states.items()
    }


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
