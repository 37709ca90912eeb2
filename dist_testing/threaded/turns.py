"""Lets one rank run at a time, in the order of ranks, so that every run has the same interleaving."""

from __future__ import annotations

import threading


class Turns:
    """Passes a single turn from rank to rank; only the rank that has it runs.

    A rank that waits in its process group passes the turn to the next rank that can continue, in the order of ranks;
    after the highest comes the lowest. A rank that waits in another way (a store, a queue, `sleep`) keeps the turn.
    Without turns (`are_on=False`, and after `stop`), a rank continues as soon as it can.

    The caller holds the lock of the world for every method.
    """

    def __init__(self, size: int, *, are_on: bool = True) -> None:
        self.are_on = are_on
        self._size = size
        self._holder = size - 1
        # The first turn starts when all ranks are ready, so that it does not depend on how fast threads start.
        self._has_begun = False
        # Whether no rank has the turn; the next rank that can continue then gets it at once.
        self._is_free = False
        self._ready: list[tuple[int, threading.Lock]] = []

    def add(self, rank: int, gate: threading.Lock) -> None:
        """Add a rank that can continue; `gate`, a locked lock, is released when the rank gets its turn."""
        if not self.are_on:
            gate.release()
            return
        self._ready.append((rank, gate))
        if not self._has_begun:
            self._has_begun = self._is_free = len(self._ready) == self._size
        if self._is_free:
            self.pass_on()

    def pass_on(self) -> None:
        """Give the turn to the next rank that can continue, because the rank that had it waits or has ended."""
        self._is_free = not self._ready
        if self._is_free:
            return
        turn = min(self._ready, key=lambda ready: (ready[0] - self._holder - 1) % self._size)
        self._ready.remove(turn)
        self._holder, gate = turn
        gate.release()

    def stop(self) -> None:
        """End the turns: let all ranks continue that wait for theirs."""
        self.are_on = False
        for _, gate in self._ready:
            gate.release()
        self._ready = []
