"""Shows the findings: as text for a terminal, and as one HTML file in the style of the reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dist_testing.audit.command import Left
from dist_testing.audit.findings import FAULTS, HOLES, Audit, CaseResult, FaultResult
from dist_testing.core.ground.error_text import ranks_text
from dist_testing.report.render import rendered
from dist_testing.report.words import columns, plural, seconds

_NAMES_SHOWN = 20
_TEMPLATE = Path(__file__).parent / "templates" / "audit.html"


def lines(found: Audit) -> Iterator[str]:
    """Yield the lines of the table, with the suite's own texts as they are."""
    audited = found.audited
    if audited:
        yield from _matrix(audited)
    for case in found.cases:
        yield from _holes(case)
    idle = [case for case in found.without_ranks if not case.holes]
    if idle:
        yield f"started no ranks: {plural(len(idle), 'case')}"
        yield from (f"  {case.id}" for case in idle[:_NAMES_SHOWN])
        if len(idle) > _NAMES_SHOWN:
            yield f"  and {len(idle) - _NAMES_SHOWN} more"
    yield from (f"not audited: {case.id}: {case.why_not}" for case in found.left_out)
    yield from (f"not seen: {text}" for text in found.unseen)
    holes = plural(found.hole_count, "hole") if found.hole_count else "no holes" if audited else "nothing audited"
    faults, cases = plural(found.fault_count, "fault"), plural(len(audited), "case")
    yield f"{holes}: {faults} in {cases}, {seconds(found.total_s)}"


def word(fault: FaultResult) -> str:
    """Return the result of a fault in one word or time."""
    if fault.holes:
        return "/".join(fault.holes)
    if fault.fault == "none":
        return "passed"
    if not fault.planted:
        return "-"
    return "skipped" if fault.noticed_s is None else seconds(fault.noticed_s)


def names(fault: FaultResult) -> str:
    """Return the ranks that the report of the harness names."""
    return ranks_text(fault.named) if fault.planted and fault.named else ""


def story(fault: FaultResult) -> str:
    """Return what a fault did, in a sentence."""
    if fault.fault == "none":
        parts = ["without a fault"]
    else:
        parts = [f"rank {fault.rank} {FAULTS[fault.fault]} in {fault.call}"]
    if fault.planted:
        status = "stopped by the audit" if fault.exit_status is None else f"exit status {fault.exit_status}"
        parts.append(f"case {fault.outcome or 'without a result'}, {status}")
    if fault.noticed_s is not None:
        parts.append(f"noticed after {seconds(fault.noticed_s)}")
    if "blamed_other" in fault.holes:
        parts.append(f"the report names {ranks_text(fault.named)}")
    parts += [text for text in (left_text(fault.left), fault.note) if text]
    return "; ".join(parts)


def left_text(left: Left) -> str:
    """Return what a run left behind, in words."""
    parts = [*left.processes, *(f"listening on {port}" for port in left.ports), *left.files]
    shown = ", ".join(parts[:5]) + (f" and {len(parts) - 5} more" if len(parts) > 5 else "")
    return f"left behind: {shown}" if parts else ""


def _matrix(audited: list[CaseResult]) -> Iterator[str]:
    rows = [("case", "ranks", "fault", "result", "names")]
    for case in audited:
        for index, fault in enumerate(case.faults):
            first = ("", "") if index else (case.id, str(case.world_size))
            rows.append((*first, fault.fault, word(fault), names(fault)))
    yield from columns(rows)


def _holes(case: CaseResult) -> Iterator[str]:
    for kind in case.holes:
        yield f"HOLE {case.id}: {HOLES[kind]}"
    for fault in case.faults:
        if fault.holes:
            yield f"HOLE {case.id}: {fault.fault}: {'; '.join(HOLES[kind] for kind in fault.holes)}"
            yield f"  {story(fault)}"


def page(found: Audit, *, made_wall_s: float) -> str:
    """Return the page, which has no scripts. `made_wall_s` is the time of day, in seconds since 1970."""
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
