"""Lays out the picture of one case: a lane for each rank, with its phases and collective calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import CaseRecord, Phase, RankRecord
from dist_testing.report.words import seconds

# Phases in the order of time. Others are drawn as "call".
_PHASES = ("start", "import", "init", "setup", "call", "teardown", "destroy")
_LEFT, _WIDTH, _ROW = 58, 582, 18
# More lanes than this do not fit beside a text.
_MAX_LANES = 16


def lanes(case: CaseRecord) -> dict[str, Any] | None:
    """Return where the parts of the picture are; None if no times are known."""
    known = [rank for rank in case.ranks if rank.phases or rank.seen_s is not None]
    if not known:
        return None
    ends = [phase.end_s for rank in known for phase in rank.phases]
    length_s = max([1e-6, *ends, *(rank.seen_s or 0.0 for rank in known)])

    def x(time_s: float) -> int:
        return round(_LEFT + _WIDTH * min(1.0, max(0.0, time_s / length_s)))

    first = [case.culprit, *case.failing, *case.victims]
    shown = sorted(known, key=lambda rank: (rank.rank not in first, rank.rank))[:_MAX_LANES]
    shown.sort(key=lambda rank: rank.rank)
    tops = {rank.rank: row * _ROW + 3 for row, rank in enumerate(shown)}
    return {
        "height": len(shown) * _ROW,
        "length_s": length_s,
        "ticks": list(_ticks(length_s, x)),
        "lanes": [
            {
                "rank": rank.rank,
                "top": tops[rank.rank],
                "title": ", ".join(f"{shorten(name, 40)} {seconds(end - begin)}" for name, begin, end in rank.phases),
                "phases": [_phase(phase, x) for phase in rank.phases],
                "calls": list(_calls(case, rank, x)),
                "seen": None if rank.seen_s is None else x(rank.seen_s),
            }
            for rank in shown
        ],
        "faults": [(x(one.at_s), f"{shorten(one.text, 80)}, after {seconds(one.at_s)}") for one in case.faults],
        "arrows": list(_arrows(case, shown, tops, x)),
        "used": [name for name in _PHASES if any(name == phase.name for rank in shown for phase in rank.phases)],
        "left_out": len(known) - len(shown),
    }


def _ticks(length_s: float, x: Callable[[float], int]) -> Iterator[tuple[int, str, str]]:
    """Yield up to six round times from 0 on."""
    power = 10.0 ** math.floor(math.log10(length_s / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= length_s / 5)
    for number in range(int(length_s / step) + 1):
        at = x(step * number)
        yield at, "end" if at > _LEFT + _WIDTH - 20 else "middle" if number else "start", seconds(step * number)


def _phase(phase: Phase, x: Callable[[float], int]) -> tuple[int, int, str]:
    left = x(phase.begin_s)
    return left, max(1, x(phase.end_s) - left), phase.name if phase.name in _PHASES else "call"


def _calls(case: CaseRecord, rank: RankRecord, x: Callable[[float], int]) -> Iterator[dict[str, Any]]:
    """Yield the collective calls of a rank, over its phases; of one whose end torch does not know, only the begin."""
    for ledger in case.ledgers:
        for call in ledger.calls:
            if ledger.rank != rank.rank or call.begin_s is None:
                continue
            end_s = ledger.read_s if call.end_s is None and not call.is_done else call.end_s
            told = "" if end_s is None else f", {seconds(end_s - call.begin_s)}"
            yield {
                "x": x(call.begin_s),
                "width": max(1, x(end_s or call.begin_s) - x(call.begin_s)),
                "title": f"{shorten(call.name, 80)}{told}{'' if call.is_done else ', not ended'}",
            }


def _arrows(
    case: CaseRecord, shown: list[RankRecord], tops: dict[int, int], x: Callable[[float], int]
) -> Iterator[str]:
    seen = {rank.rank: x(rank.seen_s) for rank in shown if rank.seen_s is not None}
    if case.culprit is None or case.culprit not in seen:
        return
    from_x, from_y = seen[case.culprit], tops[case.culprit] + 6
    for victim in case.victims:
        if victim in seen:
            to_x, to_y = seen[victim], tops[victim] + 6
            yield f"M{from_x},{from_y} Q{max(from_x, to_x) + 10},{(from_y + to_y) // 2} {to_x},{to_y}"
