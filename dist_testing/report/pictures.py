"""Draws the pictures of the page as SVG. Colours come from the page's style, so that they fit a dark page, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import MAX_S, CaseRecord, Ledger, RankRecord, Status
from dist_testing.report.facts import Share, shares
from dist_testing.report.markup import Markup, join, tag, text
from dist_testing.report.model import RunRecord
from dist_testing.report.words import count_of, plural, ranks_text, seconds

# Phases in the order of time, with the words of the legend. Others are drawn as "call".
_PHASES = {
    "start": "start",
    "import": "import",
    "init": "init",
    "setup": "setup",
    "call": "call",
    "teardown": "teardown",
    "destroy": "destroy",
}
_LANE_WIDTH = 640
_LABEL_WIDTH = 58
_ROW = 18
_BAR = 12
# Height of a collective call, which is drawn over the bar of its phase.
_CALL = 4
# More lanes than this do not fit beside a text.
_MAX_LANES = 16
_MAX_WORKERS = 24
# Bars of a timeline; one with more would be larger than the rest of the page.
_MAX_BARS = 2000


def picture(
    width: float, height: float, label: str, *content: object, class_: str = "", stretches: bool = False
) -> Markup:
    """Return a picture.

    Args:
        width: Its width in units of its own.
        height: Its height in these units.
        label: What it shows, for people who do not see it.
        *content: Its elements.
        class_: Its class in the style.
        stretches: Whether it fills its place in both directions.
    """
    return tag(
        "svg",
        tag("title", label),
        *content,
        viewBox=f"0 0 {_n(width)} {_n(height)}",
        role="img",
        class_=f"picture {class_}".strip(),
        aria_label=label,
        preserveAspectRatio="none" if stretches else None,
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _ticks(length_s: float) -> list[float]:
    """Return up to six round times from 0 on."""
    if length_s <= 0:
        return [0.0]
    raw = length_s / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [step * number for number in range(int(length_s / step) + 1)]


def _axis(left: float, width: float, top: float, length_s: float) -> list[Markup]:
    marks = []
    for tick in _ticks(length_s):
        at = left + (width * tick / length_s if length_s else 0)
        marks.append(tag("line", x1=_n(at), x2=_n(at), y1="0", y2=_n(top), class_="grid"))
        anchor = "end" if at > left + width - 20 else "middle" if at > left else "start"
        marks.append(tag("text", seconds(tick), x=_n(at), y=_n(top + 11), text_anchor=anchor, class_="axis"))
    return marks


def lanes(case: CaseRecord) -> Markup | None:
    """Draw one lane per rank: its phases, the culprit's mark, and arrows from the culprit to its victims.

    Returns:
        None if no times are known.
    """
    known = [rank for rank in case.ranks if rank.phases or rank.seen_s is not None]
    times = [time for rank in known for time in _times(rank)] + [0.0] * bool(known)
    if not times:
        return None
    begin, length_s = min(times), max(max(times) - min(times), 1e-6)
    first = [case.culprit, *case.failing, *case.victims]
    shown = sorted(known, key=lambda rank: (rank.rank not in first, rank.rank))[:_MAX_LANES]
    shown.sort(key=lambda rank: rank.rank)
    height = len(shown) * _ROW
    width = _LANE_WIDTH - _LABEL_WIDTH

    def x(time: float) -> float:
        return _LABEL_WIDTH + width * min(1.0, max(0.0, (time - begin) / length_s))

    parts: list[Markup] = _axis(_LABEL_WIDTH, width, height, length_s)
    marks: dict[int, tuple[float, float]] = {}
    for row, rank in enumerate(shown):
        top = row * _ROW + (_ROW - _BAR) / 2
        name = f"rank {rank.rank}"
        role = "culprit" if rank.rank == case.culprit else ""
        parts.append(tag("text", name, x="0", y=_n(top + _BAR - 2), class_=f"lane-name {role}".strip()))
        parts.append(_phases(rank, top, x))
        for ledger in case.ledgers:
            if ledger.rank == rank.rank:
                parts += _collectives(ledger, name, top, x)
        if rank.seen_s is not None:
            marks[rank.rank] = (x(rank.seen_s), top + _BAR / 2)
    faults = [fault for fault in case.faults if begin <= fault.at_s <= max(times)]
    for fault in faults:
        at = _n(x(fault.at_s))
        title = tag("title", f"{shorten(fault.text, 80)}, after {seconds(fault.at_s - begin)}")
        parts.append(tag("line", title, x1=at, x2=at, y1="0", y2=_n(height), class_="fault"))
    parts += _arrows(case, marks)
    label = f"{plural(len(case.ranks), 'rank')} over {seconds(length_s)}"
    if case.culprit is not None:
        label += f"; rank {case.culprit} failed first"
    if case.victims:
        label += f", {ranks_text(case.victims)} as its consequence"
    drawn = picture(_LANE_WIDTH, height + 15, label, *parts, class_="lanes")
    left_out = len(known) - len(shown)
    more = (
        tag("p", f"{plural(left_out, 'more rank')} not drawn; the trace has all.", class_="muted") if left_out else ""
    )
    used = dict.fromkeys(phase.name for rank in shown for phase in rank.phases if phase.name in _PHASES)
    has_calls = any(call.begin_s is not None for ledger in case.ledgers for call in ledger.calls)
    legend = tag(
        "p",
        join(tag("span", _PHASES[name], class_=f"key key-{name}") for name in sorted(used, key=list(_PHASES).index)),
        tag("span", "collective call", class_="key key-collective") if has_calls else "",
        tag("span", "fault on purpose", class_="key key-fault") if faults else "",
        tag("span", "failed first", class_="key key-culprit") if case.culprit is not None else "",
        tag("span", "failed, too", class_="key key-failing") if case.failing else "",
        tag("span", "victim", class_="key key-victim") if case.victims else "",
        class_="legend",
    )
    return tag("figure", drawn, legend, more, class_="lanes-figure")


def _phases(rank: RankRecord, top: float, x: Callable[[float], float]) -> Markup:
    """Draw the phases of a rank. A page has ten thousand of these bars, so they are short and made in one step."""
    bars = []
    for name, begin_s, end_s in rank.phases:
        left = x(begin_s)
        kind = name if name in _PHASES else "call"
        title = text(f"{shorten(name, 40)}, {seconds(end_s - begin_s)}")
        place = f'x="{_n(left)}" width="{_n(max(0.6, x(end_s) - left))}" height="{_BAR}"'
        bars.append(f'<rect {place} class="ph-{kind}"><title>{title}</title></rect>')
    return Markup(f'<g transform="translate(0 {_n(top)})">{"".join(bars)}</g>')


def _collectives(ledger: Ledger, name: str, top: float, x: Callable[[float], float]) -> Iterator[Markup]:
    """Draw the collective calls of a rank over its phases; of one whose end torch does not know, only the begin."""
    for call in ledger.calls:
        if call.begin_s is None:
            continue
        end_s = ledger.read_s if call.end_s is None and not call.is_done else call.end_s
        begin, end = x(call.begin_s), x(max(call.begin_s, call.begin_s if end_s is None else end_s))
        told = "" if end_s is None else f", {seconds(end_s - call.begin_s)}"
        ended = "" if call.is_done else ", not ended"
        yield tag(
            "rect",
            tag("title", f"{name}: {shorten(call.name, 80)}{told}{ended}"),
            x=_n(begin),
            y=_n(top + _BAR - _CALL),
            width=_n(max(1.2, end - begin)),
            height=str(_CALL),
            class_="ph-collective",
        )


def _times(rank: RankRecord) -> list[float]:
    times = [time for phase in rank.phases for time in (phase.begin_s, phase.end_s)]
    return times + ([rank.seen_s] if rank.seen_s is not None else [])


def _arrows(case: CaseRecord, marks: dict[int, tuple[float, float]]) -> list[Markup]:
    parts: list[Markup] = []
    source = marks.get(case.culprit) if case.culprit is not None else None
    for victim in case.victims:
        place = marks.get(victim)
        if place is None:
            continue
        if source is not None:
            bend = max(source[0], place[0]) + 10
            curve = f"M{_n(source[0])},{_n(source[1])} Q{_n(bend)},{_n((source[1] + place[1]) / 2)}"
            parts.append(tag("path", d=f"{curve} {_n(place[0])},{_n(place[1])}", class_="arrow"))
        parts.append(tag("circle", cx=_n(place[0]), cy=_n(place[1]), r="3.5", class_="mark-victim"))
    for rank in (*case.failing, case.culprit):
        if rank is not None and rank in marks:
            at_x, at_y = marks[rank]
            corners = [(at_x, at_y - 6), (at_x + 6, at_y), (at_x, at_y + 6), (at_x - 6, at_y)]
            points = " ".join(f"{_n(left)},{_n(top)}" for left, top in corners)
            kind = "culprit" if rank == case.culprit else "failing"
            parts.append(tag("polygon", points=points, class_=f"mark-{kind}"))
    return parts


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of a bar: its class, its size in any unit, and its words."""

    kind: str
    value: float
    words: str


def bars(parts: Sequence[Bar], label: str, *, whole: float | None = None, height: int = 12, width: int = 240) -> Markup:
    """Draw parts of a whole beside each other."""
    total = whole if whole is not None else sum(part.value for part in parts)
    drawn: list[Markup] = []
    at = 0.0
    for part in parts:
        length = width * part.value / total if total else 0.0
        if length <= 0:
            continue
        title = tag("title", part.words)
        drawn.append(
            tag("rect", title, x=_n(at), y="0", width=_n(max(length, 0.8)), height=str(height), class_=part.kind)
        )
        at += length
    return picture(width, height, label, *drawn, class_="bar", stretches=True)


def status_bar(counts: Sequence[tuple[Status, int, str]]) -> Markup:
    """Draw how many cases have which status."""
    label = ", ".join(words for _, _, words in counts) or "no cases"
    # A single failure among thousands must be seen: each part has at least one percent.
    total = sum(count for _, count, _ in counts)
    parts = [Bar(f"st-{status}", max(count, total / 100), words) for status, count, words in counts if count]
    return bars(parts, label, height=8, width=960)


def share_bar(case: CaseRecord, longest_s: float) -> Markup:
    """Draw how the time of a case was spent, to the scale of the longest."""
    share: Share = shares(case)
    parts = [
        Bar("ph-wait", share.gpu_wait_s, f"waiting for GPUs {seconds(share.gpu_wait_s)}"),
        Bar("ph-start", share.start_s, f"starting ranks {seconds(share.start_s)}"),
        Bar("ph-init", share.init_s, f"init {seconds(share.init_s)}"),
        Bar("ph-call", share.body_s, f"test {seconds(share.body_s)}"),
        Bar("ph-rest", share.rest_s, f"rest {seconds(share.rest_s)}"),
    ]
    words = ", ".join(part.words for part in parts if part.value > 0.0005)
    return bars(parts, words or "no times", whole=max(longest_s, sum(part.value for part in parts)))


def histogram(durations_s: Sequence[float]) -> Markup | None:
    """Draw how many cases took how long, in steps of a factor of two.

    Returns:
        None if there are too few cases.
    """
    known = [value for value in durations_s if 0 < value < MAX_S]
    if len(known) < 10:
        return None
    low = max(0.001, min(known))
    steps = max(1, math.ceil(math.log2(max(known) / low)) + 1)
    counts = [0] * steps
    for value in known:
        counts[min(steps - 1, int(math.log2(max(value, low) / low)))] += 1
    width, height, highest = 640, 96, max(counts)
    each = width / steps
    drawn = []
    for number, count in enumerate(counts):
        tall = (height - 14) * count / highest
        span = f"{seconds(low * 2**number)} to {seconds(low * 2 ** (number + 1))}: {plural(count, 'case')}"
        drawn.append(
            tag(
                "rect",
                tag("title", span),
                x=_n(number * each + 1),
                y=_n(height - tall),
                width=_n(each - 2),
                height=_n(tall),
                class_="ph-call",
            )
        )
        if count:
            middle = _n(number * each + each / 2)
            drawn.append(
                tag("text", count_of(count), x=middle, y=_n(height - tall - 3), text_anchor="middle", class_="axis")
            )
        if number % max(1, steps // 8) == 0:
            drawn.append(
                tag("text", seconds(low * 2**number), x=_n(number * each + 1), y=_n(height + 12), class_="axis")
            )
    return picture(width, height + 16, f"how long {plural(len(known), 'case')} took", *drawn, class_="histogram")


def timeline(runs: Sequence[RunRecord]) -> Markup | None:
    """Draw when each run ran, one row per worker: runs that overlap are below each other.

    Returns:
        None if fewer than two times are known.
    """
    timed = sorted(
        ((run.began_wall_s, run) for run in runs if run.began_wall_s is not None and not run.cached and run.duration_s),
        key=lambda item: item[0],
    )[:_MAX_BARS]
    if len(timed) < 2:
        return None
    begin = timed[0][0]
    length_s = max(at + run.duration_s for at, run in timed) - begin
    if not 0 < length_s < MAX_S:
        return None
    # A row is free once its last run has ended. Clocks of workers differ a little. Seconds.
    rows: list[tuple[str, float]] = []
    placed: list[tuple[int, float, RunRecord]] = []
    for at, run in timed:
        free = [row for row, (host, end) in enumerate(rows) if host == run.host and end <= at + 0.05]
        row = free[0] if free else len(rows)
        if not free:
            rows.append((run.host, 0.0))
        rows[row] = (run.host, at + run.duration_s)
        placed.append((row, at, run))
    order = {row: place for place, row in enumerate(sorted(range(len(rows)), key=lambda row: (rows[row][0], row)))}
    count = min(len(rows), _MAX_WORKERS)
    width, height = 960, count * 12
    drawn: list[Markup] = _axis(0, width, height, length_s)
    for row, at, run in placed:
        if order[row] >= _MAX_WORKERS:
            continue
        words = f"{shorten(run.target, 200)}{run.in_part}: {seconds(run.duration_s)}"
        drawn.append(
            tag(
                "rect",
                tag("title", f"{words}{f' on {run.host}' if run.host else ''}"),
                x=_n(width * (at - begin) / length_s),
                y=str(order[row] * 12 + 1),
                width=_n(max(1.0, width * run.duration_s / length_s - 0.5)),
                height="10",
                class_="st-failed" if run.is_bad else "ph-init",
            )
        )
    hosts = len({run.host for _, run in timed if run.host})
    where = f" on {plural(hosts, 'worker')}" if hosts else ""
    order_text = "runs in one row ran one after the other; red ones failed"
    label = f"{plural(len(timed), 'run')}{where} over {seconds(length_s)}; {order_text}"
    return tag(
        "div", picture(width, height + 15, label, *drawn, class_="timeline"), tag("p", text(label), class_="muted")
    )
