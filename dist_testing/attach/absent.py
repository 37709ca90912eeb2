"""Tells which processes of an attached world have ended before they connected, so that the others need not wait."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from typing import Any

import psutil

from dist_testing.attach.rank_info import RankInfo, pid_key

# A rank that waits for others looks this often for news of their processes. Seconds.
LOOK_S = 1.0


class Absent:
    """The ranks of this node that have not connected yet, as far as their processes are known.

    Each tells its number in the store when its plugin is set up. A process that ends before that, in a conftest.py, is
    missing among the children of torchrun's agent.
    """

    def __init__(self, store: Any, rank_info: RankInfo) -> None:
        self._store = store
        self._rank_info = rank_info
        self._pidfds: dict[int, int] = {}
        self._gone: set[int] = set()

    def ended(self, ranks: Sequence[int]) -> list[int]:
        """Return those of the ranks whose processes have ended."""
        unknown = []
        for rank in ranks:
            if rank in self._pidfds or rank in self._gone:
                continue
            if not self._store.check([pid_key(rank)]):
                unknown.append(rank)
                continue
            pid, _, node_key = self._store.get(pid_key(rank)).decode().partition(" ")
            if node_key != self._rank_info.node_key:
                # The number means another process here.
                continue
            try:
                self._pidfds[rank] = os.pidfd_open(int(pid))
            except ProcessLookupError:
                self._gone.add(rank)
        if unknown and (started := started_by_agent(self._rank_info)):
            self._gone.update({*unknown} - started)
        poller = select.poll()
        for rank, fd in self._pidfds.items():
            if rank in ranks:
                poller.register(fd, select.POLLIN)
        # A pidfd is readable when its process has ended.
        ready = {fd for fd, _ in poller.poll(0)}
        return [rank for rank in ranks if rank in self._gone or self._pidfds.get(rank) in ready]

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self._pidfds.values():
            os.close(fd)


def started_by_agent(rank_info: RankInfo) -> set[int]:
    """Return the ranks that torchrun's agent, the parent of this process, has as children; empty if it cannot be told.

    The agent starts all ranks of its node at once, before this one has collected the tests.
    """
    if rank_info.has_other_nodes or not rank_info.is_served:
        return set()
    found = set()
    try:
        agent = psutil.Process().parent()
        # A wrapper of the rank has its variables; the other ranks then have wrappers of their own.
        if agent is None or "RANK" in agent.environ():
            return set()
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
                return set()
            found.add(int(rank))
    except psutil.Error:
        return set()
    return found if rank_info.rank in found else set()
