"""The links between simulated nodes, and what happens to the packets on them, without a network.

A link is a pair of nodes and goes one way. The fate of a packet depends on the seed, the link and the packet's number
on the link, and on nothing else. So a seed gives the same fate to the same packet number in every run, on every
machine. Which bytes a packet carries is up to TCP, which looks at the clock.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from dist_testing.core.ground.record import LinkEnds

# A message to the kernel carries at most 253 descriptors, and each node has two.
MAX_NODES = 64
MAX_DELAY_MS = 60_000
MAX_RATE_KBIT = 100_000_000
MAX_SEED = 1 << 63
# At most so many later packets overtake a packet that is reordered.
MAX_OVERTAKING = 3
# Shares are counted in millionths, so that the same number means the same on every machine.
MILLION = 1_000_000
# A packet that later ones have to overtake waits for them at most so long. Seconds.
HOLD_S = 0.02
# A link with a limited rate keeps at most so much; what does not fit is lost.
MAX_QUEUE_BYTES = 16 * 1024 * 1024
_DRAWS = struct.Struct(">4Q")


@dataclass(frozen=True, slots=True)
class LinkRule:
    """What a link does to its packets: `Faults.wire`, with times in microseconds and shares in millionths."""

    is_cut: bool = False  # whether it loses all packets
    delay_us: Annotated[int, range(1000 * MAX_DELAY_MS + 1)] = 0
    jitter_us: Annotated[int, range(1000 * MAX_DELAY_MS + 1)] = 0
    loss_ppm: Annotated[int, range(MILLION + 1)] = 0
    reorder_ppm: Annotated[int, range(MILLION + 1)] = 0
    rate_kbit: Annotated[int, range(MAX_RATE_KBIT + 1)] = 0  # 0 for no limit
    seed: Annotated[int, range(MAX_SEED)] = 0

    def describe(self) -> str:
        """Return the rule in words, such as "loss 1 %, delay 20 ms"."""
        if self.is_cut:
            return "cut"
        parts = [
            f"delay {self.delay_us / 1000:g} ms" if self.delay_us else "",
            f"jitter {self.jitter_us / 1000:g} ms" if self.jitter_us else "",
            f"loss {self.loss_ppm / MILLION:.4g}" if self.loss_ppm else "",
            f"reorder {self.reorder_ppm / MILLION:.4g}" if self.reorder_ppm else "",
            f"rate {self.rate_kbit} kbit/s" if self.rate_kbit else "",
        ]
        return ", ".join(filter(None, parts)) or "whole"


WHOLE = LinkRule()
CUT = LinkRule(is_cut=True)


class Fate(NamedTuple):
    """What happens to one packet."""

    is_lost: bool
    delay_us: int  # how long it takes, without the limit of the rate
    overtaken_by: int  # how many later packets of the link arrive before it


def fate(rule: LinkRule, link: LinkEnds, number: int) -> Fate:
    """Return the fate of the packet with this number, from 0, on a link with this rule."""
    if rule.is_cut:
        return Fate(True, 0, 0)
    if not (rule.loss_ppm or rule.jitter_us or rule.reorder_ppm):
        return Fate(False, rule.delay_us, 0)
    name = f"{rule.seed}/{link.source}/{link.target}/{number}".encode()
    lost, jitter, reordered, overtaking = _DRAWS.unpack(hashlib.blake2b(name, digest_size=_DRAWS.size).digest())
    return Fate(
        lost % MILLION < rule.loss_ppm,
        rule.delay_us + jitter % (rule.jitter_us + 1),
        1 + overtaking % MAX_OVERTAKING if reordered % MILLION < rule.reorder_ppm else 0,
    )


def links_between(sources: Iterable[int], targets: Iterable[int], *, both: bool) -> tuple[LinkEnds, ...]:
    """Return the links from each of some nodes to each of others, and with `both` those back, without repetition."""
    links = [LinkEnds(source, target) for source in sources for target in targets if source != target]
    back = [LinkEnds(target, source) for source, target in links] if both else []
    return tuple(dict.fromkeys([*links, *back]))


class LinkQueue:
    """The packets of one link, from when they are sent: gives each its number, and keeps those on their way."""

    def __init__(self, link: LinkEnds) -> None:
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
        self._free_s = 0.0
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

    def _release(self, is_free: Callable[[int, float], bool], now_s: float) -> list[tuple[float, bytes]]:
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
