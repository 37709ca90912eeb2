"""Tells which ranks of this node have ended before they connected, so that the others need not wait."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from dist_testing.attach.rank_info import RankInfo

# A rank that waits for others looks this often for news of their processes. Seconds.
LOOK_S = 1.0


def ended_ranks(rank_info: RankInfo, ranks: Sequence[int]) -> list[int]:
    """Return those of the ranks that torchrun's agent, the parent of this process, has started and no longer has.

    The agent starts all ranks of its node at once, with numbers in a row, before this one has collected the tests.
    Nothing is returned if it cannot be told. torchrun itself reports no exit with code 0.
    """
    if not rank_info.is_served or rank_info.local_rank is None:
        return []
    found = set()
    try:
        agent = psutil.Process().parent()
        # A wrapper of the rank has its variables; the other ranks then have wrappers of their own.
        if agent is None or "RANK" in agent.environ():
            return []
        for child in agent.children():
            try:
                # The variables of a process that has ended are empty until its parent has waited for it.
                if child.status() == psutil.STATUS_ZOMBIE:
                    continue
                rank = child.environ().get("RANK", "")
            except psutil.NoSuchProcess:
                continue
            if not rank.isdecimal():
                # A rank before its exec has the variables of the agent.
                return []
            found.add(int(rank))
    except psutil.Error:
        return []
    if rank_info.rank not in found:
        return []
    first = rank_info.rank - rank_info.local_rank
    return [rank for rank in ranks if rank in range(first, first + rank_info.local_size) and rank not in found]
