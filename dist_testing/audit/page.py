"""Writes the findings as one HTML file in the style of the reports, without scripts and without external assets."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

import dist_testing.report
from dist_testing.audit.faults import FAULTS
from dist_testing.audit.findings import HOLES, Audit, CaseResult, FaultResult
from dist_testing.audit.table import story, word
from dist_testing.core.ground.error_text import ranks_text
from dist_testing.report.facts import utc
from dist_testing.report.markup import Markup, join, table, tag
from dist_testing.report.words import plural, seconds

_STYLE = Path(dist_testing.report.__file__).parent / "assets" / "page.css"
_ROWS_SHOWN = 5000


def page(found: Audit, *, made_wall_s: float) -> str:
    """Return the page.

    Args:
        found: The findings.
        made_wall_s: Time of day, in seconds since 1970.
    """
    style = _STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    words, kind = _verdict(found)
    sections = [
        ("Holes", "holes", _hole_section(found)),
        ("Faults", "faults", _fault_section(found)),
        ("Cases without ranks", "idle", _case_section(found.without_ranks, "idle", "Cases without ranks")),
        ("Not audited", "not-audited", _case_section(_not_audited(found), "not-audited", "Not audited")),
        ("Not seen", "not-seen", _unseen_section(found)),
    ]
    links = [tag("a", name, href=f"#{anchor}") for name, anchor, section in sections if section]
    head = [
        Markup('<meta charset="utf-8"/>'),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        ),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{words} \u00b7 Audit"),
        Markup(f"<style>{style}</style>"),
    ]
    body = [
        tag("a", "Skip to the results", href="#main", class_="skip-link"),
        _header(found, tag("h1", words, class_=f"verdict {kind}")),
        tag("nav", tag("div", *links), aria_label="parts of this page"),
        tag("main", *[section for _, _, section in sections], id="main"),
        tag("footer", tag("p", f"Made {utc(made_wall_s)} by dist_testing.audit")),
    ]
    return f"<!doctype html>\n{tag('html', tag('head', *head), tag('body', *body), lang='en')}\n"


def _verdict(found: Audit) -> tuple[str, str]:
    if found.hole_count:
        return plural(found.hole_count, "hole"), "bad"
    return ("No holes", "good") if found.audited else ("No case was audited", "doubtful")


def _header(found: Audit, verdict: Markup) -> Markup:
    planted = sum(fault.planted for case in found.cases for fault in case.faults)
    total = f"{plural(planted, 'fault')} in {plural(len(found.audited), 'case')} of {len(found.cases)}"
    status = "stopped" if found.exit_status is None else f"exit status {found.exit_status}"
    facts = [" ".join(found.command), status, f"{seconds(found.suite_s)} as it is, {seconds(found.total_s)} in all"]
    return tag(
        "header",
        tag("p", "Audit of a suite's own harness", class_="title"),
        verdict,
        tag("p", total, class_="total"),
        tag("p", join(facts, " \u00b7 "), class_="invocation muted"),
    )


def _hole_section(found: Audit) -> Markup:
    folds = []
    for case in found.cases:
        folds += [_fold(HOLES[kind], case, None) for kind in case.holes]
        folds += [_fold(HOLES[kind], case, fault) for fault in case.faults for kind in fault.holes]
    if not folds:
        return tag("section", tag("h2", "Holes"), tag("p", "No holes were found.", class_="calm"), id="holes")
    return tag("section", tag("h2", f"Holes ({len(folds)})"), *folds, id="holes")


def _fold(meaning: str, case: CaseResult, fault: FaultResult | None) -> Markup:
    told = story(fault) if fault is not None else "No fault was planted."
    log = tag("p", f"Output: {fault.log}", class_="muted under") if fault is not None and fault.log else ""
    head = tag(
        "summary",
        tag("h3", case.id),
        tag("span", fault.fault if fault is not None else "as it is", class_="badge"),
        tag("div", meaning, class_="headline"),
    )
    return tag("details", head, tag("div", tag("p", told), log, class_="body"), class_="failure")


def _fault_section(found: Audit) -> Markup:
    rows = []
    for case in found.audited:
        for index, fault in enumerate(case.faults):
            rows.append(
                tag(
                    "tr",
                    tag("td", tag("bdi", case.id) if not index else ""),
                    tag("td", case.world_size if not index else "", class_="number"),
                    tag("td", fault.fault, title=FAULTS.get(fault.fault)),
                    tag("td", tag("span", word(fault), class_=f"word {'bad' if fault.holes else ''}")),
                    tag("td", ranks_text(fault.named) if fault.planted and fault.named else ""),
                    tag("td", fault.note, class_="muted"),
                )
            )
    if not rows:
        return Markup()
    shown = table(("case", "ranks", "fault", "result", "report names", "note"), rows[:_ROWS_SHOWN], "all faults")
    more = tag("p", f"and {len(rows) - _ROWS_SHOWN} more", class_="muted") if len(rows) > _ROWS_SHOWN else ""
    return tag("section", tag("h2", f"Faults ({len(rows)})"), shown, more, id="faults")


def _case_section(cases: list[CaseResult], anchor: str, title: str) -> Markup:
    if not cases:
        return Markup()
    rows = [
        tag("tr", tag("td", tag("bdi", case.id)), tag("td", case.outcome), tag("td", case.why_not, class_="muted"))
        for case in cases[:_ROWS_SHOWN]
    ]
    made = table(("case", "result", "why"), rows, title)
    return tag("section", tag("h2", f"{title} ({len(cases)})"), made, id=anchor)


def _not_audited(found: Audit) -> list[CaseResult]:
    return [case for case in found.cases if case.world_size and case.why_not]


def _unseen_section(found: Audit) -> Markup:
    if not found.unseen:
        return Markup()
    return tag("section", tag("h2", "Not seen"), _list(found.unseen), id="not-seen")


def _list(texts: Iterable[str]) -> Markup:
    return tag("ul", *[tag("li", text) for text in texts])
