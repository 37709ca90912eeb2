"""Collects the stacks of ranks that are still running."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Mapping

from dist_testing.core.process.stacks import ANSWER_MARK

# The public operation of torch.distributed that a stack by faulthandler goes through, the outermost last.
_OPERATION = re.compile(r"torch/distributed/distributed_c10d\.py\", line \d+ in ([a-z]\w*)")

# faulthandler does not say when it has finished. Silence of this length after the first line counts as the end.
# Seconds.
_QUIET_S = 0.1


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
