"""Writes the page: one HTML file without external assets, readable without JavaScript."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import BAD, STATUSES, CaseRecord, Ledger, Status
from dist_testing.report import facts
from dist_testing.report.compare import Comparison
from dist_testing.report.flakes import measured, votes
from dist_testing.report.lanes import lanes
from dist_testing.report.model import InvocationRecord, LogRecord, NotRun, Problem, Report, RunRecord, is_label
from dist_testing.report.render import fragment, html_bytes, rendered
from dist_testing.report.story import story_of
from dist_testing.report.words import WORDS, count_of, plural, seconds, slug

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
_MAX_INVOCATIONS = 20
_MAX_PROBLEMS = 50
_MAX_MESSAGE_CHARS = 300
# Where an executor or a sandbox has put packages and files. In stacks it pushes the rest of the line out of sight.
_DEEP = re.compile(r'(?<=File ")/[^"\n]*(?:/(?=site-packages/)|\.runfiles/[^/"\n]+/)')

_Part = TypeVar("_Part")

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
    groups = facts.alike(found)
    counts = facts.status_counts(report)
    words, kind = _verdict(report, found, counts)
    ledger = facts.ledger(report)
    rates = [one for one in measured(votes(report, same_inputs=same_inputs)) if one.runs + one.broken > 1]
    flaky = [one for one in rates if one.label == "flaky"]
    cases = [(run, case) for run in report.runs for case in run.cases]
    sections: list[tuple[str, str, object, int]] = [
        ("Failures", "failures", True, len(found)),
        ("Not run", "not-run", True, len(ledger)),
        ("Changes", "changes", changed, 0),
        ("Flakes", "flakes", rates, len(flaky)),
        ("All cases", "all", True, 0),
    ]
    shown = list(_failures(groups[:_MAX_SHOWN]))
    return rendered(
        _TEMPLATE,
        title=shorten(title, 200) or "Test report",
        words=words,
        kind=kind,
        total=_total(report, sum(counts.values())),
        counts=list(_counts(report, counts)),
        invocations=[{"name": one.name, "facts": _told(one)} for one in report.invocations[:_MAX_INVOCATIONS]],
        invocations_left=len(report.invocations) - _MAX_INVOCATIONS,
        links=[(name, anchor, count) for name, anchor, is_there, count in sections if is_there],
        problems=list(_problems(report.problems).items())[:_MAX_PROBLEMS],
        problem_count=len(report.problems),
        failures=shown,
        failure_count=len(found),
        failures_left=sum(map(len, groups[len(shown) :])),
        ledger=list(_ledger(ledger)),
        changed=changed and changed[0],
        changed_since=changed and changed[1],
        rates=rates,
        flaky=flaky,
        steady=[one for one in rates if one.label == "no failure"],
        case_count=len(cases),
        rows=list(_fitting(_rows(cases, groups[: len(shown)]), _ROWS_BYTES, _row_bytes)),
        made=facts.utc(made_wall_s),
        versions=_versions(report),
    )


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


def _total(report: Report, cases: int) -> str:
    targets = len({run.target for run in report.runs} | set(report.targets))
    return f"{plural(cases, 'case')} in {plural(targets, 'target')}" if report.runs else ""


def _counts(report: Report, counts: Counter[Status]) -> Iterator[tuple[str, str]]:
    yield from ((one, f"{count_of(counts[one])} {WORDS[one]}") for one in STATUSES if counts[one])
    for kind in ("not built", "not reached"):
        if absent := sum(not line.case and line.kind == kind for line in report.not_run):
            yield "unfinished", f"{plural(absent, 'target')} {kind}"


def _told(one: InvocationRecord) -> str:
    parts = [
        one.command,
        f"Bazel {one.version}" if one.version else "",
        "" if one.began_wall_s is None else facts.utc(one.began_wall_s),
        seconds(one.duration_s) if one.duration_s else "",
        "" if one.exit_code is None else f"exit status {one.exit_code}{f' ({one.exit_name})' if one.exit_name else ''}",
        "" if one.is_complete else "did not come to its end",
        f"revision {one.revision[:12]}" if one.revision else "",
    ]
    return " \u00b7 ".join(filter(None, parts))


def _problems(problems: Sequence[Problem]) -> dict[str, list[str]]:
    """Return text -> subjects: the same of many targets stands there once."""
    alike: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        alike[problem.text].append(problem.subject)
    return alike


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
        if html_bytes(html) > left_bytes - _BRIEF_BYTES * (len(groups) - number):
            html = _failure(number, group, 0)
        left_bytes -= html_bytes(html)
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
        "case": case,
        "story": None,
        "status": case.status if case is not None else "failed",
        "word": _word(failure),
        "name": shorten(failure.name, 600),
        "headline": shorten(facts.headline(run, case), 600),
        "chips": [shorten(chip, 300) for chip in _chips(failure, others) if chip],
        "recovered": failure.recovered,
        "is_open": number < _OPEN and not failure.recovered,
        "logs": [],
        "log_chars": _LOG_CHARS,
        "left_out": [],
    }
    if limit:
        for log in _own_logs(run.logs, case):
            values["logs" if log.text and number < _WITH_LOGS else "left_out"].append(log)
    if limit and case is not None:
        story = story_of(_DEEP.sub(".../", shorten(case.text, limit)))
        values |= {
            "story": story,
            # The first line is the headline.
            "told": story.head.partition("\n")[2].strip(),
            "picture": lanes(case),
            "ledger": _ledgers(case),
            "warnings": [f"rank {rank.rank}: {line}" for rank in case.ranks for line in rank.warnings],
        }
    return fragment(_FAILURE, **values)


def _word(failure: facts.Failure) -> str:
    case = failure.case
    if case is None:
        return failure.run.status.lower() or "failed"
    return shorten(case.cause, 100) if case.cause not in ("", "none", "failure") else WORDS[case.status]


def _chips(failure: facts.Failure, others: Sequence[facts.Failure]) -> Iterator[str]:
    """Yield what tells a failure from others: where it was, and which further runs failed in the same way."""
    run, case = failure.run, failure.case
    if case is not None and is_label(run.target):
        yield run.target
    yield run.part
    yield f"on {run.host}" if run.host and run.strategy == "remote" else ""
    yield run.backend
    yield f"world of {case.world_size}" if case is not None and case.world_size else ""
    gpus, wait_s = facts.gpus_of(case) if case is not None else ("", 0.0)
    if gpus:
        yield f"GPUs {gpus}, after a wait of {seconds(wait_s)}"
    if others:
        parts = [other.run.part for other in others if other.run.part]
        named = f": {'; '.join(parts[:6])}{'; ...' if len(parts) > 6 else ''}" if parts else ""
        yield f"and {plural(len(others), 'more run')} like this{named}"


def _ledgers(case: CaseRecord) -> list[tuple[tuple[int, ...], Ledger]]:
    """Return what each rank waits for, with its last collective calls; ranks that do the same stand together."""
    alike: dict[object, list[Ledger]] = defaultdict(list)
    for ledger in case.ledgers:
        alike[ledger.state, ledger.place, tuple(call.words for call in ledger.calls)].append(ledger)
    return [(tuple(ledger.rank for ledger in same), same[0]) for same in alike.values()]


def _own_logs(logs: Sequence[LogRecord], case: CaseRecord | None) -> Iterator[LogRecord]:
    """Yield the logs of a case: those of its ranks, and the log of the whole run."""
    # The mark tells cases apart whose names differ only in special characters.
    name = slug(case.nodeid) if case is not None else ""
    own = re.compile(rf"{re.escape(name)}(\.[0-9a-f]{{8}})?\.rank-") if name else None
    for log in logs:
        if case is None or ".rank-" not in log.name or (own is not None and own.match(log.name)):
            yield log


def _ledger(lines: Sequence[NotRun]) -> Iterator[tuple[str, str, int, list[tuple[str, str, list[str], int]]]]:
    """Yield each kind of the skip ledger: title, note, number, and its reasons.

    Each reason has where, names, and how many more names there are.
    """
    left_bytes = _LEDGER_BYTES
    by_kind: dict[str, dict[str, list[NotRun]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        # The time of each cached result differs; the names have it.
        reason = "unchanged" if line.kind == "cached" else shorten(line.reason, 400)
        by_kind[line.kind][reason].append(line)
    for kind, (title, note) in _KINDS.items():
        if found := by_kind.get(kind):
            sizes = {reason: sum(line.count or 1 for line in same) for reason, same in found.items()}
            ordered = sorted(found.items(), key=lambda item: (-sizes[item[0]], item[0]))
            reasons = []
            for reason, same in ordered:
                names = list(_fitting((shorten(_name(line), 400) for line in same[:60]), left_bytes, _text_bytes))
                left_bytes -= sum(map(_text_bytes, names))
                reasons.append((reason, _where(same), names, len(same) - len(names)))
            yield title, note, sum(sizes.values()), reasons


def _where(lines: Sequence[NotRun]) -> str:
    targets, cases = plural(len({line.target for line in lines}), "target"), sum(line.count for line in lines)
    return f"{plural(cases, 'case')} in {targets}" if cases else targets


def _name(line: NotRun) -> str:
    name = f"{line.target}  {line.case}" if line.case else line.target
    if line.kind == "cached":
        return f"{name}: {line.reason}"
    return f"{name} ({plural(line.count, 'case')})" if line.count > 1 else name


def _rows(
    cases: Sequence[tuple[RunRecord, CaseRecord]], groups: Sequence[Sequence[facts.Failure]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of all cases, the worst and then the slowest first."""
    anchors = {
        (id(failure.run), id(failure.case)): f"failure-{number}"
        for number, group in enumerate(groups, 1)
        for failure in group
    }
    order = {status: place for place, status in enumerate(STATUSES)}
    ordered = sorted(cases, key=lambda one: (order[one[1].status], -one[1].duration_s))
    for run, case in ordered:
        told = "" if case.status == "passed" else shorten(facts.headline(run, case), _MAX_MESSAGE_CHARS)
        yield {
            "word": f"{WORDS[case.status]}{', cached' if run.cached else ''}",
            "is_bad": case.status in BAD,
            "name": shorten(case.name, _MAX_MESSAGE_CHARS),
            "anchor": anchors.get((id(run), id(case)), ""),
            "message": told,
            "target": shorten(f"{run.target}{run.in_part}", _MAX_MESSAGE_CHARS),
            "world": case.world_size,
            "culprit": "" if case.culprit is None else f"rank {case.culprit}",
            "time": seconds(case.duration_s),
        }


def _text_bytes(text: str) -> int:
    return _TEXT_BYTES + html_bytes(text)


def _row_bytes(row: Mapping[str, Any]) -> int:
    twice = 2 if row["message"] else 1
    return twice * _ROW_BYTES + sum(html_bytes(row[name]) for name in ("name", "message", "target"))


def _versions(report: Report) -> str:
    versions: dict[str, set[str]] = defaultdict(set)
    for run in report.runs:
        for name, version in run.versions.items():
            versions[name].add(version)
    told = ", ".join(f"{name} {' and '.join(sorted(found)[:3])}" for name, found in sorted(versions.items())[:8])
    return shorten(told, 300)
