"""Writes the page: one HTML file without external assets, readable without JavaScript."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import BAD, STATUSES, CaseRecord, Ledger, Phase, RankRecord, Status
from dist_testing.report import facts
from dist_testing.report.compare import Comparison
from dist_testing.report.flakes import measured, votes
from dist_testing.report.model import FINE_EXITS, LogRecord, NotRun, Report, RunRecord
from dist_testing.report.render import fragment, html_bytes, rendered
from dist_testing.report.words import WORDS, count_of, grouped, plural, seconds, slug

_TEMPLATE = Path(__file__).parent / "templates" / "page.html"
_FAILURE = _TEMPLATE.with_name("failure.html")
# Failures with details. More are in the table of all cases: no reader needs so many, and the page must open.
_MAX_SHOWN = 200
# Failures that are open when the page opens, and failures that have their logs.
_OPEN, _WITH_LOGS = 3, 6
# Characters of the texts of all failures together, and of one. The head and the tail of a longer text stay.
_ALL_TEXTS_CHARS = 800_000
_MOST_TEXT_CHARS = 40_000
_LOG_CHARS = 8_000
# Bytes of the parts that can be long, and of the HTML around each text: the whole page has at most 5,000,000.
_FAILURES_BYTES, _LEDGER_BYTES, _ROWS_BYTES = 2_500_000, 200_000, 2_100_000
_BRIEF_BYTES, _TEXT_BYTES, _ROW_BYTES = 4_000, 30, 100
_MAX_MESSAGE_CHARS = 300
# Where an executor or a sandbox has put packages and files. In stacks it pushes the rest of the line out of sight.
_DEEP = re.compile(r'(?<=File ")/[^"\n]*(?:/(?=site-packages/)|\.runfiles/[^/"\n]+/)')
# Phases in the order of time. Others are drawn as "call".
_PHASES = ("start", "import", "init", "setup", "call", "teardown", "destroy")
_LEFT, _WIDTH, _ROW = 58, 582, 18
# More lanes than this do not fit beside a text.
_MAX_LANES = 16

_Part = TypeVar("_Part")
# A row of the table of all cases: the anchor of its failure, and its name, message and target, shortened.
_Row = tuple[RunRecord, CaseRecord, str, tuple[str, ...]]

_KINDS = {
    "not reached": ("Not reached", "The run ended before these began."),
    "not built": ("Not built", "These targets could not be analysed or built."),
    "ran nothing": ("Ran nothing", "No case of these targets ran."),
    "no results": ("Without results", "Nothing is known of the cases of these targets."),
    "skipped": ("Skipped cases", ""),
    "incompatible": ("Incompatible targets", ""),
    "filtered": ("Filtered", ""),
    "cached": ("From a cache", "These did not run again, because nothing has changed."),
}


def page(
    report: Report,
    *,
    title: str = "",
    made_wall_s: float,
    same_inputs: bool = False,
    changed: tuple[Comparison, str] | None = None,
) -> str:
    """Return the page as HTML.

    `same_inputs`: the user vouches that all invocations had equal inputs, so that they vote about flakes together.
    `changed`: what differs from other results, and their name.
    """
    found = facts.failures(report)
    problems = [*report.problems, *(changed[0].unread if changed else ())]
    groups = facts.alike(found)
    counts = facts.status_counts(report)
    words, kind = _verdict(report, found, counts)
    ledger = facts.ledger(report)
    rates = [one for one in measured(votes(report, same_inputs=same_inputs)) if one.runs + one.broken > 1]
    cases = [(run, case) for run in report.runs for case in run.cases]
    shown = list(_failures(groups[:_MAX_SHOWN]))
    return rendered(
        _TEMPLATE,
        title=title or "Test report",
        words=words,
        kind=kind,
        report=report,
        counts=counts,
        statuses=WORDS,
        bad=BAD,
        problems=list(grouped((problem.text, problem.subject) for problem in problems).items()),
        failures=shown,
        failure_count=len(found),
        failures_left=sum(map(len, groups[len(shown) :])),
        quarantined=facts.quarantined(report),
        ledger=list(_ledger(ledger)),
        ledger_count=len(ledger),
        changed=changed and changed[0],
        changed_since=changed and changed[1],
        rates=rates,
        numbers=list(facts.numbers_of(report)),
        case_count=len(cases),
        rows=list(_fitting(_rows(cases, groups[: len(shown)]), _ROWS_BYTES, _row_bytes)),
        made_wall_s=made_wall_s,
        versions=_versions(report),
    )


def _verdict(report: Report, found: Sequence[facts.Failure], counts: Mapping[Status, int]) -> tuple[str, str]:
    """Return the first words of the page, and their class."""
    if failed := sum(not failure.recovered for failure in found):
        return f"{count_of(failed)} failed", "bad"
    codes = [one for one in report.invocations if one.exit_code not in FINE_EXITS]
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
    if any(run.to_come for run in facts.final_runs(report)):
        # pytest.exit() can set exit status 0.
        return "Incomplete", "doubtful"
    return ("Passed after retries", "doubtful") if found else ("Passed", "good")


def _fitting(parts: Iterable[_Part], limit_bytes: int, size_of: Callable[[_Part], int]) -> Iterator[_Part]:
    """Yield the first parts that together have at most so many bytes."""
    for part in parts:
        limit_bytes -= size_of(part)
        if limit_bytes < 0:
            return
        yield part


def _failures(groups: Sequence[Sequence[facts.Failure]]) -> Iterator[str]:
    """Yield the HTML of each failure. Those for which there is no room any more have only the headline."""
    limit = min(_MOST_TEXT_CHARS, _ALL_TEXTS_CHARS // max(1, len(groups)))
    left_bytes = _FAILURES_BYTES
    for number, group in enumerate(groups):
        html = _failure(number, group, limit)
        size = len(html.encode(errors="replace"))
        if size > left_bytes - _BRIEF_BYTES * (len(groups) - number):
            html = _failure(number, group, 0)
            size = len(html.encode(errors="replace"))
        left_bytes -= size
        if left_bytes < 0:
            return
        yield html


def _failure(number: int, group: Sequence[facts.Failure], limit: int) -> str:
    """Return the HTML of a failure, with at most `limit` characters of its text; with 0 only the headline."""
    failure, *others = group
    run, case = failure.run, failure.case
    values: dict[str, Any] = {
        "number": number + 1,
        "is_brief": not limit,
        "failure": failure,
        "case": case,
        "run": run,
        "story": None,
        "words": WORDS,
        "headline": facts.headline(run, case),
        "others": others,
        "gpus": facts.gpus_of(case) if case is not None else None,
        "is_open": number < _OPEN and not failure.recovered,
        "logs": [],
        "log_chars": _LOG_CHARS,
        "left_out": [],
    }
    if limit:
        for log in _own_logs(run.logs, case):
            values["logs" if log.text and number < _WITH_LOGS else "left_out"].append(log)
    if limit and case is not None:
        story = facts.story_of(_DEEP.sub(".../", shorten(case.text, limit)))
        values |= {
            "story": story,
            # The first line is the headline.
            "told": story.head.partition("\n")[2].strip(),
            "picture": lanes(case),
            "ledger": _ledgers(case),
            "warnings": [f"rank {rank.rank}: {line}" for rank in case.ranks for line in rank.warnings],
        }
    return fragment(_FAILURE, **values)


def _ledgers(case: CaseRecord) -> list[tuple[tuple[int, ...], Ledger]]:
    """Return what each rank waits for, with its last collective calls; ranks that do the same stand together."""
    alike = grouped(((one.state, one.place, tuple(call.words for call in one.calls)), one) for one in case.ledgers)
    return [(tuple(ledger.rank for ledger in same), same[0]) for same in alike.values()]


def _own_logs(logs: Sequence[LogRecord], case: CaseRecord | None) -> Sequence[LogRecord]:
    """Return the logs of a case: those of its ranks, and the log of the whole run."""
    if case is None:
        return logs
    # The mark tells cases apart whose names differ only in special characters.
    own = re.compile(rf"{re.escape(slug(case.nodeid))}(\.[0-9a-f]{{8}})?\.rank-")
    return [log for log in logs if ".rank-" not in log.name or own.match(log.name)]


def _ledger(lines: Sequence[NotRun]) -> Iterator[tuple[str, str, int, list[tuple[str, list[NotRun], list[str]]]]]:
    """Yield each kind of the skip ledger: title, note, number, and its reasons with their lines and names to show."""
    left_bytes = _LEDGER_BYTES
    for kind, (title, note) in _KINDS.items():
        # The time of each cached result differs; the names have it.
        same_reason = "unchanged" if kind == "cached" else ""
        if found := grouped((same_reason or shorten(line.reason, 400), line) for line in lines if line.kind == kind):
            sizes = {reason: sum(line.count or 1 for line in same) for reason, same in found.items()}
            reasons = []
            for reason, same in sorted(found.items(), key=lambda item: (-sizes[item[0]], item[0])):
                names = list(_fitting((shorten(_name(line), 400) for line in same[:60]), left_bytes, _text_bytes))
                left_bytes -= sum(map(_text_bytes, names))
                reasons.append((reason, same, names))
            yield title, note, sum(sizes.values()), reasons


def _name(line: NotRun) -> str:
    name = f"{line.target}  {line.case}" if line.case else line.target
    if line.kind == "cached":
        return f"{name}: {line.reason}"
    return f"{name} ({plural(line.count, 'case')})" if line.count > 1 else name


def _rows(cases: Sequence[tuple[RunRecord, CaseRecord]], groups: Sequence[Sequence[facts.Failure]]) -> Iterator[_Row]:
    """Yield the rows of the table of all cases, the worst and then the slowest first."""
    anchors = {
        (id(failure.run), id(failure.case)): f"failure-{number}"
        for number, group in enumerate(groups, 1)
        for failure in group
    }
    for run, case in sorted(cases, key=lambda one: (STATUSES.index(one[1].status), -one[1].duration_s)):
        told = "" if case.status == "passed" else facts.headline(run, case)
        texts = (shorten(text, _MAX_MESSAGE_CHARS) for text in (case.name, told, f"{run.target}{run.in_part}"))
        yield run, case, anchors.get((id(run), id(case)), ""), tuple(texts)


def _text_bytes(text: str) -> int:
    return _TEXT_BYTES + html_bytes(text)


def _row_bytes(row: _Row) -> int:
    texts = row[-1]
    return (2 if texts[1] else 1) * _ROW_BYTES + sum(map(html_bytes, texts))


def _versions(report: Report) -> str:
    versions = grouped(item for run in report.runs for item in run.versions.items())
    told = ", ".join(f"{name} {' and '.join(sorted(set(found))[:3])}" for name, found in sorted(versions.items())[:8])
    return shorten(told, 300)


def lanes(case: CaseRecord) -> dict[str, Any] | None:
    """Return where the parts of the picture of a case are: a lane for each rank; None if no times are known."""
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
