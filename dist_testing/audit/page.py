"""Writes the findings as one HTML file in the style of the reports, without scripts and without external assets."""

from __future__ import annotations

from pathlib import Path

from dist_testing.audit.findings import FAULTS, HOLES, Audit
from dist_testing.audit.table import names, story, word
from dist_testing.report.render import rendered
from dist_testing.report.words import plural

_TEMPLATE = Path(__file__).parent / "templates" / "audit.html"


def page(found: Audit, *, made_wall_s: float) -> str:
    """Return the page of the findings. `made_wall_s` is the time of day, in seconds since 1970."""
    if found.hole_count:
        words, kind = plural(found.hole_count, "hole"), "bad"
    else:
        words, kind = ("No holes", "good") if found.audited else ("No case was audited", "doubtful")
    return rendered(
        _TEMPLATE,
        words=words,
        kind=kind,
        found=found,
        rows=[(case, fault) for case in found.audited for fault in case.faults],
        meanings=HOLES,
        faults=FAULTS,
        story=story,
        word=word,
        names=names,
        made_wall_s=made_wall_s,
    )
