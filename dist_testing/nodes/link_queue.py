"""One link between two nodes: gives each packet its number and its fate, and keeps those that are on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dist_testing.nodes.links import WHOLE, Link, LinkRule, fate

# A packet that later ones have to overtake waits for them at most so long. Seconds.
HOLD_S = 0.02
# A link with a limited rate keeps at most so much; what does not fit is lost.
MAX_QUEUE_BYTES = 16 * 1024 * 1024

# Whether a held packet goes on, by the number of the packet that it waits for, and its latest time.
_IsFree: TypeAlias = Callable[[int, float], bool]


class LinkQueue:
    """The packets of one link, from the moment when they are sent.

    Attributes:
        rule: What happens to the next packets.
    """

    def __init__(self, link: Link) -> None:
        self.rule: LinkRule = WHOLE
        self._link = link
        self._number = 0
        # Packets to be overtaken: the number of the packet after which each goes on, when it goes on at the latest, it.
        self._held: list[tuple[int, float, int, bytes]] = []
        # When the packets that have been sent will have passed a link with a limited rate.
        self._free_s = 0.0

    def set_rule(self, rule: LinkRule) -> None:
        """Set a new rule. The next packet has number 0 again."""
        self.rule = rule
        self._number = 0
        self._held = [(-1, late_s, delay_us, packet) for _, late_s, delay_us, packet in self._held]

    @property
    def next_s(self) -> float | None:
        """When `overdue` has packets; None if no packet is held."""
        return min((late_s for _, late_s, _, _ in self._held), default=None)

    def send(self, packet: bytes, now_s: float) -> list[tuple[float, bytes]]:
        """Take a packet. Return packets that are on their way now, each after the time at which it arrives."""
        number, self._number = self._number, self._number + 1
        is_lost, delay_us, overtaken_by = fate(self.rule, self._link, number)
        arriving = []
        if overtaken_by and not is_lost:
            self._held.append((number + overtaken_by, now_s + HOLD_S, delay_us, packet))
        elif not is_lost:
            arriving += self._pass(delay_us, packet, now_s)
        if self._held:
            arriving += self._release(lambda after, _: after <= number, now_s)
        return arriving

    def overdue(self, now_s: float) -> list[tuple[float, bytes]]:
        """Return held packets that no later packet has overtaken in time, as `send` does."""
        return self._release(lambda _, late_s: late_s <= now_s, now_s)

    def _release(self, is_free: _IsFree, now_s: float) -> list[tuple[float, bytes]]:
        free = [held for held in self._held if is_free(held[0], held[1])]
        self._held = [held for held in self._held if not is_free(held[0], held[1])]
        return [passed for _, _, delay_us, packet in free for passed in self._pass(delay_us, packet, now_s)]

    def _pass(self, delay_us: int, packet: bytes, now_s: float) -> list[tuple[float, bytes]]:
        if self.rule.is_cut:
            return []
        if self.rule.rate_kbit:
            begin_s = max(now_s, self._free_s)
            per_byte_s = 8 / (1000 * self.rule.rate_kbit)
            if begin_s - now_s > MAX_QUEUE_BYTES * per_byte_s:
                return []
            now_s = self._free_s = begin_s + len(packet) * per_byte_s
        return [(now_s + delay_us / 1e6, packet)]
