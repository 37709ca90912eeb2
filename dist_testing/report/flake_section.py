"""Flake rates as a part of the page, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dist_testing.core.ground.error_text import shorten
from dist_testing.report.facts import utc
from dist_testing.report.flake_history import history, history_picture
from dist_testing.report.flakes import Change, Flake, Vote, changes, measured, votes
from dist_testing.report.markup import Markup, clean, table, tag
from dist_testing.report.model import Report
from dist_testing.report.pictures import Bar, bars
from dist_testing.report.words import count_of, percent, plural

_MAX_ROWS = 40
_MAX_CHANGES = 20
_MAX_HISTORIES = 8


def flake_section(report: Report, *, same_inputs: bool) -> Markup:
    """Return the part of the page about flakes; nothing if no case ran more than once with equal inputs.

    Args:
        report: The results.
        same_inputs: Whether the user vouches that all invocations had equal inputs.
    """
    given = list(votes(report, same_inputs=same_inputs))
    times = sorted((one.began_wall_s for one in report.invocations), key=lambda time: time or 0.0)
    rates = [flake for flake in measured(given) if flake.runs + flake.broken > 1]
    if not rates:
        return Markup()
    flaky = [flake for flake in rates if flake.label == "flaky"]
    clean_ones = [flake for flake in rates if flake.label == "no failure"]
    blocks: list[object] = [
        tag(
            "p",
            "Only runs with equal inputs vote: those of one invocation, and of invocations of one revision.",
            class_="muted",
        )
    ]
    if flaky:
        widest = max(flake.interval[1] for flake in flaky[:_MAX_ROWS])
        rows = [_row(flake, widest) for flake in flaky[:_MAX_ROWS]]
        blocks.append(table(("failures", "rate, 95 %", "", "case"), rows, "flake rates"))
        if len(flaky) > _MAX_ROWS:
            blocks.append(tag("p", f"and {len(flaky) - _MAX_ROWS} more", class_="muted"))
    else:
        blocks.append(tag("p", "No case has both passed and failed.", class_="calm"))
    if clean_ones:
        least = min(clean_ones, key=lambda flake: flake.runs)
        more = least.more_runs()
        claim = f"To claim a rate below 1\N{NO-BREAK SPACE}% needs {count_of(more)} more clean runs of each."
        blocks.append(
            tag(
                "p",
                f"{plural(len(clean_ones), 'case')} never failed, in {count_of(least.runs)} runs or more. ",
                claim if more else "Each has a rate below 1\N{NO-BREAK SPACE}%, with 95\N{NO-BREAK SPACE}% confidence.",
            )
        )
    blocks += _history_blocks(given, flaky, times)
    changed = changes(given)
    if changed:
        rows = [_change_row(change) for change in changed[:_MAX_CHANGES]]
        blocks += [
            tag("h3", "New, gone, worse"),
            table(("", "before", "after", "case"), rows, "changes of flake rates"),
        ]
    title = f"Flakes ({len(flaky)})" if flaky else "Flakes"
    return tag("section", tag("h2", title), *blocks, id="flakes")


def _history_blocks(given: Sequence[Vote], flaky: Sequence[Flake], times: Sequence[float | None]) -> Iterator[Markup]:
    """Yield a picture of each of the flakiest cases, if a history is known."""
    drawn = [
        tag("figure", tag("figcaption", tag("bdi", shorten(flake.case, 300))), history_picture(points, times))
        for flake in flaky[:_MAX_HISTORIES]
        if (points := history(given, flake))
    ]
    if drawn:
        known = [time for time in times if time is not None]
        span = f"from {utc(known[0])} to {utc(known[-1])}" if known else "in the order of the invocations"
        yield tag("h3", "Rates over time")
        yield tag("p", f"With intervals of 95\N{NO-BREAK SPACE}%, {span}.", class_="muted")
        yield from drawn


def _row(flake: Flake, widest: float) -> Markup:
    low, high = flake.interval
    kinds = ", ".join(f"{shorten(kind, 60)} {count}" for kind, count in flake.kinds.most_common(5))
    facts = [kinds, flake.culprit_words, f"{count_of(flake.more_runs())} more clean runs to claim below 1 %"]
    if flake.machine:
        facts.append(f"{plural(flake.machine, 'run')} lost by the machine")
    drawn = bars(
        [
            Bar("bar-none", low, ""),
            Bar("st-failed", max(high - low, widest / 200), f"{percent(low)} to {percent(high)}"),
        ],
        f"{percent(low)} to {percent(high)}",
        whole=widest,
        height=7,
    )
    return tag(
        "tr",
        tag("td", f"{flake.failures} of {flake.runs}", class_="number"),
        tag("td", f"{percent(low)}\u2013{percent(high)}", class_="number"),
        tag("td", drawn, class_="bar-cell"),
        tag(
            "td",
            tag("bdi", shorten(flake.case, 300)),
            tag(
                "span", shorten(" \u00b7 ".join(filter(None, [flake.target, flake.backend])), 300), class_="muted under"
            ),
            tag("span", " \u00b7 ".join(filter(None, facts)), class_="muted under"),
        ),
    )


def _change_row(change: Change) -> Markup:
    cells = (change.what, f"{change.before.failures} of {change.before.runs}")
    after = f"{change.after.failures} of {change.after.runs}"
    return tag(
        "tr", *[tag("td", cell) for cell in (*cells, after)], tag("td", tag("bdi", shorten(change.after.case, 300)))
    )


def flake_lines(rates: Sequence[Flake], rate: float) -> Iterator[str]:
    """Yield the rates as lines for a terminal, the flakiest first.

    Args:
        rates: The rates.
        rate: The rate to claim.
    """
    for flake in rates:
        low, high = flake.interval
        name = clean(" ".join(filter(None, (flake.target, flake.case))))
        if flake.label == "broken":
            yield f"BROKEN  {name}: failed in all of {flake.broken} runs"
            continue
        if flake.label == "flaky":
            kinds = ", ".join(f"{count} x {clean(kind)}" for kind, count in flake.kinds.most_common())
            who = f"; {flake.culprit_words}" if flake.culprit_words else ""
            yield f"FLAKY  {name}: {flake.failures} of {flake.runs} failed, {percent(low)} to {percent(high)} (95 %)"
            yield f"    {kinds}{who}"
        more = flake.more_runs(rate)
        if more == 0:
            yield f"below {percent(rate)}  {name}: {flake.failures} of {flake.runs} failed (95 % confidence)"
        elif flake.label == "no failure":
            yield f"unknown  {name}: 0 of {flake.runs} failed; {more} more clean runs to claim below {percent(rate)}"
