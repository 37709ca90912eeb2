"""One rank at a time, in the order of ranks: the same interleaving in every run."""

from __future__ import annotations

import threading

__all__ = ["Turns"]


class Turns:
    """Hands a single turn from rank to rank.

    A rank that waits in its group gives its turn to the next one that could go on, in the order of ranks and from the
    highest to the lowest again. Ranks that wait in other ways (a store, a queue, `sleep`) keep it, and the others wait.

    Everything here is called under the lock of the world.

    Args:
        size: Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._holder = size - 1
        # Until all ranks are there, nobody gets it: who is first must not depend on how fast threads start.
        self._has_begun = False
        # Whether nobody has it: the next one who could go on gets it at once.
        self._is_free = False
        self._ready: list[tuple[int, threading.Lock]] = []

    def add(self, rank: int, gate: threading.Lock) -> None:
        """A rank could go on; its gate opens when it is its turn."""
        self._ready.append((rank, gate))
        if not self._has_begun:
            self._has_begun = self._is_free = len(self._ready) == self._size
        if self._is_free:
            self.pass_on()

    def pass_on(self) -> None:
        """The rank that has the turn waits or has ended."""
        self._is_free = not self._ready
        if self._is_free:
            return
        turn = min(self._ready, key=lambda ready: (ready[0] - self._holder - 1) % self._size)
        self._ready.remove(turn)
        self._holder, gate = turn
        gate.release()

    def stop(self) -> None:
        """No more turns: let everybody go on."""
        for _, gate in self._ready:
            gate.release()
        self._ready = []
