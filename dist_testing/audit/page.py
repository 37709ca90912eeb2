"""Writes the findings as one HTML file in the style of the reports, without scripts and without external assets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dist_testing.audit.faults import FAULTS
from dist_testing.audit.findings import HOLES, Audit, CaseResult, FaultResult
from dist_testing.audit.table import story, word
from dist_testing.core.ground.error_text import ranks_text
from dist_testing.report.facts import utc
from dist_testing.report.render import rendered
from dist_testing.report.words import plural, seconds

_TEMPLATE = Path(__file__).parent / "templates" / "audit.html"


def page(found: Audit, *, made_wall_s: float) -> str:
    """Return the page of the findings. `made_wall_s` is the time of day, in seconds since 1970."""
    words, kind = _verdict(found)
    planted = sum(fault.planted for case in found.cases for fault in case.faults)
    status = "stopped" if found.exit_status is None else f"exit status {found.exit_status}"
    rows = list(_rows(found))
    not_audited = [case for case in found.cases if case.world_size and case.why_not]
    facts = [" ".join(found.command), status, f"{seconds(found.suite_s)} as it is, {seconds(found.total_s)} in all"]
    return rendered(
        _TEMPLATE,
        words=words,
        kind=kind,
        total=f"{plural(planted, 'fault')} in {plural(len(found.audited), 'case')} of {len(found.cases)}",
        facts=" \u00b7 ".join(facts),
        links=[
            ("Holes", "holes", True),
            ("Faults", "faults", rows),
            ("Cases without ranks", "idle", found.without_ranks),
            ("Not audited", "not-audited", not_audited),
            ("Not seen", "not-seen", found.unseen),
        ],
        holes=list(_holes(found)),
        rows=rows,
        idle=found.without_ranks,
        not_audited=not_audited,
        unseen=found.unseen,
        made=utc(made_wall_s),
    )


def _verdict(found: Audit) -> tuple[str, str]:
    if found.hole_count:
        return plural(found.hole_count, "hole"), "bad"
    return ("No holes", "good") if found.audited else ("No case was audited", "doubtful")


def _holes(found: Audit) -> Iterator[dict[str, Any]]:
    for case in found.cases:
        yield from (_hole(HOLES[kind], case, None) for kind in case.holes)
        yield from (_hole(HOLES[kind], case, fault) for fault in case.faults for kind in fault.holes)


def _hole(meaning: str, case: CaseResult, fault: FaultResult | None) -> dict[str, Any]:
    return {
        "case": case.id,
        "fault": fault.fault if fault is not None else "as it is",
        "meaning": meaning,
        "told": story(fault) if fault is not None else "No fault was planted.",
        "log": fault.log if fault is not None else "",
    }


def _rows(found: Audit) -> Iterator[dict[str, Any]]:
    for case in found.audited:
        for index, fault in enumerate(case.faults):
            yield {
                "case": "" if index else case.id,
                "ranks": "" if index else case.world_size,
                "fault": fault.fault,
                "meaning": FAULTS.get(fault.fault, ""),
                "is_hole": bool(fault.holes),
                "word": word(fault),
                "named": ranks_text(fault.named) if fault.planted and fault.named else "",
                "note": fault.note,
            }
