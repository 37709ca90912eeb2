"""Writes the page: one HTML file without external assets, readable without JavaScript.

Its content security policy allows the page's own style and script by their digests and nothing else: no request leaves
the page, whatever the results contain.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import STATUSES, Status
from dist_testing.report import facts
from dist_testing.report.compare import Comparison, compare_section
from dist_testing.report.failure_section import anchors, failure_section
from dist_testing.report.flake_section import flake_section
from dist_testing.report.markup import Markup, join, table, tag
from dist_testing.report.model import InvocationRecord, Report
from dist_testing.report.packed import Packer
from dist_testing.report.pictures import status_bar
from dist_testing.report.sections import (
    ledger_section,
    problem_section,
    shard_section,
    slow_section,
    time_section,
    waits_section,
)
from dist_testing.report.words import WORDS, count_of, plural, seconds

_ASSETS = Path(__file__).parent / "assets"
# More invocations are folded, and still more are only counted: the failures are what people came for.
_OPEN_INVOCATIONS = 2
_MAX_INVOCATIONS = 100
# Logs fill the page up to this size: more does not open at once on a phone, and CI servers do not keep it.
_MAX_BYTES = 5_000_000
# For the head of the page and what stands between its parts.
_FRAME_BYTES = 4_000


def page(
    report: Report,
    *,
    title: str = "",
    made_wall_s: float,
    same_inputs: bool = False,
    changed: tuple[Comparison, str] | None = None,
) -> str:
    """Return the page as HTML.

    Args:
        report: The results.
        title: Title of the page; by default the names of the invocations.
        made_wall_s: Time of day, in seconds since 1970.
        same_inputs: Whether the user vouches that all invocations had equal inputs, so that they vote about flakes
            together.
        changed: What differs from other results, and their name.
    """
    style = (_ASSETS / "page.css").read_text(encoding="utf-8")
    script = (_ASSETS / "page.js").read_text(encoding="utf-8")
    packer = Packer()
    found = facts.failures(report)
    groups = facts.alike(found)
    counts = facts.status_counts(report)
    words, kind = _verdict(report, found, counts)
    lines = facts.ledger(report)
    title = shorten(title, 200) or "Test report"
    failed = failure_section(groups, packer)
    places = anchors(groups)
    for run, case in facts.named(report):
        packer.case(run, case, places.get((id(run), id(case)), ""))
    sections = [
        ("Failures", failed),
        ("Not run", ledger_section(lines)),
        ("Changes", compare_section(*changed) if changed else Markup()),
        ("Flakes", flake_section(report, same_inputs=same_inputs)),
        ("Slowest", slow_section(report)),
        ("Shards", shard_section(report)),
        ("Caches and GPUs", waits_section(report)),
        ("Timeline", time_section(report)),
        ("All cases", _all_cases(packer.case_count)),
    ]
    body = [
        tag("a", "Skip to the results", href="#main", class_="skip-link"),
        _header(report, counts, tag("h1", words, class_=f"verdict {kind}"), title),
        _navigation(sections, found, lines),
        tag("main", problem_section(report.problems), *[section for _, section in sections], id="main"),
        _footer(report, made_wall_s),
    ]
    head = [
        Markup('<meta charset="utf-8"/>'),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{words} \u00b7 {title}"),
        Markup(f"<style>{style}</style>"),
    ]
    code = Markup(f"<script>{script}</script>")
    shown = join(body)
    packed = packer.packed(_MAX_BYTES - len(shown.encode()) - len(style) - len(script) - _FRAME_BYTES)
    data = Markup(f'<script type="application/octet-stream" id="data">{packed}</script>')
    document = tag("html", tag("head", *head), tag("body", shown, data, code), lang="en")
    return f"<!doctype html>\n{document}\n"


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _verdict(report: Report, found: Sequence[facts.Failure], counts: Mapping[Status, int]) -> tuple[str, str]:
    """Return the first words of the page, and their class."""
    failed = sum(not failure.recovered for failure in found)
    if failed:
        return f"{count_of(failed)} failed", "bad"
    codes = [one for one in report.invocations if one.exit_code]
    if codes and (absent := sum(line.kind == "not built" for line in report.not_run)):
        return f"{plural(absent, 'target')} not built", "bad"
    if codes:
        return f"exit status {codes[0].exit_code}", "bad"
    if not any(run.has_results for run in report.runs):
        # The results may have stayed on a remote cache; Bazel itself knows that all tests passed.
        has_passed = any(run.status for run in report.runs) and all(one.exit_code == 0 for one in report.invocations)
        return ("Passed, details unknown", "doubtful") if has_passed else ("No results", "bad")
    if report.problems or any(not one.is_complete for one in report.invocations):
        return "Incomplete", "doubtful"
    if not any(count for status, count in counts.items() if status != "skipped"):
        return "Nothing ran", "doubtful"
    return ("Passed after retries", "doubtful") if found else ("Passed", "good")


def _header(report: Report, counts: Counter[Status], verdict: Markup, title: str) -> Markup:
    told = [
        (status, counts[status], f"{count_of(counts[status])} {WORDS[status]}") for status in STATUSES if counts[status]
    ]
    chips = [tag("li", tag("span", "", class_=f"dot st-{status}"), text, class_="count") for status, _, text in told]
    for kind in ("not built", "not reached"):
        if absent := sum(not line.case and line.kind == kind for line in report.not_run):
            dot = tag("span", "", class_="dot st-unfinished")
            chips.append(tag("li", dot, f"{plural(absent, 'target')} {kind}", class_="count"))
    invocations = [_invocation(one) for one in report.invocations[:_MAX_INVOCATIONS]]
    left_out = len(report.invocations) - len(invocations)
    if left_out > 0:
        invocations.append(tag("p", f"and {left_out} more", class_="muted"))
    if len(report.invocations) > _OPEN_INVOCATIONS:
        title = tag("summary", plural(len(report.invocations), "invocation"))
        invocations = [tag("details", title, *invocations, class_="fold")]
    targets = len({run.target for run in report.runs} | set(report.targets))
    cases = sum(counts.values())
    total = f"{plural(cases, 'case')} in {plural(targets, 'target')}" if report.runs else ""
    return tag(
        "header",
        tag("p", title, class_="title"),
        verdict,
        tag("p", total, class_="total"),
        status_bar(told),
        tag("ul", *chips, class_="counts"),
        *invocations,
    )


def _invocation(one: InvocationRecord) -> Markup:
    parts = [one.command]
    if one.version:
        parts.append(f"Bazel {one.version}")
    if one.began_wall_s is not None:
        parts.append(facts.utc(one.began_wall_s))
    if one.duration_s:
        parts.append(seconds(one.duration_s))
    if one.exit_code is not None:
        parts.append(f"exit status {one.exit_code}{f' ({one.exit_name})' if one.exit_name else ''}")
    if not one.is_complete:
        parts.append("did not come to its end")
    if one.revision:
        parts.append(f"revision {one.revision[:12]}")
    facts_line = join((part for part in parts if part), " \u00b7 ")
    return tag("p", facts_line, tag("span", shorten(one.name, 200), class_="under"), class_="invocation muted")


def _navigation(
    sections: Sequence[tuple[str, Markup]], found: Sequence[facts.Failure], lines: Sequence[object]
) -> Markup:
    counted = {"Failures": len(found), "Not run": len(lines)}
    names = {
        "Failures": "failures",
        "Not run": "not-run",
        "Changes": "changes",
        "Flakes": "flakes",
        "Slowest": "slowest",
        "Shards": "shards",
        "Caches and GPUs": "caches",
        "Timeline": "timeline",
        "All cases": "all",
    }
    links = [
        tag(
            "a",
            name,
            tag("span", str(counted[name]), class_="tally") if counted.get(name) else "",
            href=f"#{names[name]}",
        )
        for name, section in sections
        if section
    ]
    return tag("nav", tag("div", *links), aria_label="parts of this page")


def _all_cases(count: int) -> Markup:
    statuses = [tag("option", WORDS[status], value=status) for status in STATUSES]

    def choice(name: str, label: str, *options: Markup) -> Markup:
        return tag("label", label, tag("select", tag("option", "all", value=""), *options, id=name))

    controls = tag(
        "div",
        tag(
            "label",
            "Search",
            tag("input", type="search", id="search", placeholder="name, target or message", autocomplete="off"),
            class_="search",
        ),
        choice("f-status", "Result", tag("option", "did not pass", value="bad"), *statuses),
        choice("f-target", "Target"),
        choice("f-backend", "Backend"),
        choice("f-world", "World"),
        choice("f-culprit", "Culprit"),
        tag(
            "label",
            "Order",
            tag(
                "select",
                tag("option", "worst first", value="status"),
                tag("option", "slowest first", value="time"),
                tag("option", "as they ran", value="ran"),
                id="f-order",
            ),
        ),
        class_="controls",
    )
    script_only = tag(
        "div",
        controls,
        tag("p", id="found", class_="muted", role="status"),
        table(("result", "case", "world", "culprit", "time"), [], "all cases", rows_id="rows"),
        tag("button", "Show more", type="button", id="more", hidden=True),
        id="browser",
        hidden=True,
    )
    without = tag(
        "p",
        f"The table of {plural(count, 'case')} is compressed in this file, and needs JavaScript. The sections above do "
        "not.",
        id="without",
    )
    return tag("section", tag("h2", f"All cases ({count_of(count)})"), without, script_only, id="all")


def _footer(report: Report, made_wall_s: float) -> Markup:
    versions: dict[str, set[str]] = {}
    for run in report.runs:
        for name, version in run.versions.items():
            versions.setdefault(name, set()).add(version)
    told = ", ".join(f"{name} {' and '.join(sorted(found)[:3])}" for name, found in sorted(versions.items())[:8])
    keys = tag(
        "p",
        "Keys: ",
        join([tag("kbd", "/"), " search, ", tag("kbd", "j"), " and ", tag("kbd", "k"), " next and previous failure, "]),
        join([tag("kbd", "Enter"), " opens what has the focus, ", tag("kbd", "Esc"), " leaves the search."]),
        class_="keys",
    )
    made = f"Made {facts.utc(made_wall_s)} by dist_testing.report"
    return tag("footer", keys, tag("p", f"{made}{f'; {shorten(told, 300)}' if told else ''}"))
