"""Writes the findings as one HTML file in the style of the reports, without scripts and without external assets."""

from __future__ import annotations

from pathlib import Path

from dist_testing.audit.findings import FAULTS, HOLES, Audit
from dist_testing.audit.table import names, story, word
from dist_testing.report.facts import utc
from dist_testing.report.render import rendered
from dist_testing.report.words import plural, seconds

_TEMPLATE = Path(__file__).parent / "templates" / "audit.html"


def page(found: Audit, *, made_wall_s: float) -> str:
    """Return the page of the findings. `made_wall_s` is the time of day, in seconds since 1970."""
    if found.hole_count:
        words, kind = plural(found.hole_count, "hole"), "bad"
    else:
        words, kind = ("No holes", "good") if found.audited else ("No case was audited", "doubtful")
    planted = sum(fault.planted for case in found.cases for fault in case.faults)
    status = "stopped" if found.exit_status is None else f"exit status {found.exit_status}"
    facts = [" ".join(found.command), status, f"{seconds(found.suite_s)} as it is, {seconds(found.total_s)} in all"]
    return rendered(
        _TEMPLATE,
        words=words,
        kind=kind,
        total=f"{plural(planted, 'fault')} in {plural(len(found.audited), 'case')} of {len(found.cases)}",
        facts=" \u00b7 ".join(facts),
        found=found,
        rows=[(case, fault) for case in found.audited for fault in case.faults],
        not_audited=[case for case in found.cases if case.world_size and case.why_not],
        meanings=HOLES,
        faults=FAULTS,
        story=story,
        word=word,
        names=names,
        made=utc(made_wall_s),
    )
