"""The parts of the page beside the failures: what did not run, what is slow, shards, caches, GPUs, and the timeline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from dist_testing.core.ground.error_text import shorten
from dist_testing.report import facts
from dist_testing.report.markup import Markup, join, table, tag
from dist_testing.report.model import NotRun, Problem, Report, RunRecord, is_label
from dist_testing.report.pictures import Bar, bars, histogram, share_bar, timeline
from dist_testing.report.remote_times import remote_block
from dist_testing.report.words import plural, seconds

_SLOW_CASES = 15
_SLOW_TARGETS = 12
_BALANCES = 20
# Names below one reason of the skip ledger; the table of all cases has the others.
_MAX_NAMES = 60
_MAX_REASONS = 80
_MAX_PROBLEMS = 50
_MAX_REASON_CHARS = 400

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


def problem_section(problems: Sequence[Problem]) -> Markup:
    """Return what could not be read; nothing if everything could."""
    if not problems:
        return Markup()
    # The same of many targets stands there once.
    alike: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        alike[problem.text].append(problem.subject)
    items = [_problem(text, subjects) for text, subjects in list(alike.items())[:_MAX_PROBLEMS]]
    left_out = sum(map(len, list(alike.values())[_MAX_PROBLEMS:]))
    more = tag("p", f"and {left_out} more", class_="muted") if left_out else ""
    title = f"Could not be read, or does not fit together ({len(problems)})"
    return tag("section", tag("h2", title), tag("ul", *items), more, id="problems", class_="problems")


def _problem(text: str, subjects: Sequence[str]) -> Markup:
    first, _, rest = shorten(text, 2000).partition("\n")
    named = [tag("bdi", shorten(subject, _MAX_REASON_CHARS)) for subject in subjects[:_MAX_NAMES]]
    others: object = ""
    if len(subjects) > 1:
        names = [tag("li", one) for one in named[1:]]
        if len(subjects) > len(named):
            names.append(tag("li", f"and {len(subjects) - len(named)} more", class_="muted"))
        title = tag("summary", f"and the same of {len(subjects) - 1} more")
        others = tag("details", title, tag("ul", *names), class_="fold")
    return tag(
        "li",
        tag("p", tag("strong", named[0]), ": ", first),
        tag("p", rest.replace("\n", " "), class_="muted") if rest else "",
        others,
    )


def ledger_section(lines: Sequence[NotRun]) -> Markup:
    """Return the skip ledger: by kind, then by reason, with the names folded."""
    by_kind: dict[str, dict[str, list[NotRun]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        by_kind[line.kind][_reason(line)].append(line)
    if not lines:
        return tag("section", tag("h2", "Not run"), tag("p", "Everything ran.", class_="calm"), id="not-run")
    blocks = []
    for kind, (title, note) in _KINDS.items():
        if kind not in by_kind:
            continue
        reasons = sorted(by_kind[kind].items(), key=lambda item: (-_size(item[1]), item[0]))
        rows = [_reason_row(reason, found) for reason, found in reasons[:_MAX_REASONS]]
        left_out = len(reasons) - len(rows)
        more = tag("p", f"and {plural(left_out, 'more reason')}", class_="muted") if left_out else ""
        total = sum(_size(found) for _, found in reasons)
        blocks += [tag("h3", f"{title} ({total})"), tag("p", note, class_="muted") if note else "", *rows, more]
    return tag("section", tag("h2", "Not run, and why"), *blocks, id="not-run")


def _reason(line: NotRun) -> str:
    # The time of each cached result differs; the names have it.
    return "unchanged" if line.kind == "cached" else shorten(line.reason, _MAX_REASON_CHARS)


def _size(lines: Sequence[NotRun]) -> int:
    return sum(line.count or 1 for line in lines)


def _reason_row(reason: str, lines: Sequence[NotRun]) -> Markup:
    names = [tag("li", tag("bdi", _name(line))) for line in lines[:_MAX_NAMES]]
    if len(lines) > _MAX_NAMES:
        names.append(tag("li", f"and {len(lines) - _MAX_NAMES} more: see the table of all cases", class_="muted"))
    targets = len({line.target for line in lines})
    cases = sum(line.count for line in lines)
    where = plural(targets, "target") if not cases else f"{plural(cases, 'case')} in {plural(targets, 'target')}"
    summary = tag("summary", tag("span", tag("bdi", reason), class_="reason"), tag("span", where, class_="muted"))
    return tag("details", summary, tag("ul", *names), class_="fold")


def _name(line: NotRun) -> str:
    name = shorten(f"{line.target}  {line.case}" if line.case else line.target, _MAX_REASON_CHARS)
    if line.kind == "cached":
        return f"{name}: {line.reason}"
    return f"{name} ({plural(line.count, 'case')})" if line.count > 1 else name


def slow_section(report: Report) -> Markup:
    """Return the slowest cases with the shares of their time, and the slowest targets."""
    slow = facts.slow_cases(report, _SLOW_CASES)
    if not slow:
        return Markup()
    longest_s = max(one.case.duration_s for one in slow)
    rows = [
        tag(
            "tr",
            tag("td", seconds(one.case.duration_s), class_="number"),
            tag("td", share_bar(one.case, longest_s), class_="bar-cell"),
            tag("td", tag("bdi", shorten(one.case.name, 200)), _target(one.run)),
        )
        for one in slow
    ]
    keys = [
        ("wait", "waiting for GPUs"),
        ("start", "starting ranks"),
        ("init", "init"),
        ("call", "test"),
        ("rest", "rest"),
    ]
    legend = tag("p", join(tag("span", words, class_=f"key key-{kind}") for kind, words in keys), class_="legend")
    blocks = [legend, table(("time", "spent on", "case"), rows, "slowest cases")]
    totals: Counter[str] = Counter()
    final = facts.final_runs(report)
    for run in final:
        if not run.cached:
            totals[run.target] += round(run.duration_s * 1000)
    if len(totals) > 1:
        targets = [
            tag(
                "tr",
                tag("td", seconds(millis / 1000), class_="number"),
                tag("td", tag("bdi", shorten(target, 300))),
            )
            for target, millis in totals.most_common(_SLOW_TARGETS)
        ]
        blocks += [
            tag("h3", "Slowest targets, all runs and shards together"),
            table(("time", "target"), targets, "slowest targets"),
        ]
    durations = [case.duration_s for run in final for case in run.cases if case.status != "skipped"]
    picture = histogram(durations)
    if picture is not None:
        blocks += [tag("h3", "How long cases took"), tag("figure", picture)]
    return tag("section", tag("h2", "Slowest"), *blocks, id="slowest")


def _target(run: RunRecord) -> Markup:
    return tag("span", shorten(run.target, 300), class_="muted under") if is_label(run.target) else Markup()


def shard_section(report: Report) -> Markup:
    """Return how balanced the shards are, and the command that mends it."""
    found = facts.balances(report)
    if not found:
        return Markup()
    longest_s = max(max(balance.durations_s) for balance in found)
    rows = []
    for balance in found[:_BALANCES]:
        longest = seconds(max(balance.durations_s))
        drawn = [
            bars([Bar("ph-init", one, seconds(one))], seconds(one), whole=longest_s, height=7)
            for one in balance.durations_s[:32]
        ]
        rows.append(
            tag(
                "tr",
                tag("td", f"{balance.ratio:.2f}", class_="number"),
                tag("td", *drawn, class_="bar-cell"),
                tag(
                    "td",
                    tag("bdi", shorten(balance.target, 300)),
                    tag(
                        "span",
                        f"{plural(len(balance.durations_s), 'shard')}, the longest {longest}; "
                        f"with timings about {seconds(balance.ideal_s)}",
                        class_="muted under",
                    ),
                ),
            )
        )
    left_out = len(found) - len(rows)
    more = tag("p", f"and {plural(left_out, 'more balanced target')}", class_="muted") if left_out else ""
    mend = tag(
        "p",
        "A file of timings balances them: ",
        tag("code", "bazel run @dist_testing//tools/report:timings -- --out=timings.json"),
        ", and ",
        tag("code", 'timings = "timings.json"'),
        " at the target.",
    )
    shards = table(("longest / mean", "shards", "target"), rows, "balance of shards")
    return tag("section", tag("h2", "Shards"), mend, shards, more, id="shards")


def waits_section(report: Report) -> Markup:
    """Return how long GPUs were waited for, and where results came from."""
    waits = facts.gpu_waits(report)
    origins = facts.cache_counts(report)
    blocks: list[object] = []
    if origins:
        rows = [
            tag("tr", tag("td", str(count), class_="number"), tag("td", origin))
            for origin, count in origins.most_common()
        ]
        blocks += [tag("h3", "Where results came from"), table(("test actions", "origin"), rows, "origins of results")]
    if waits:
        rows = [
            tag(
                "tr",
                tag("td", seconds(wait.total_s), class_="number"),
                tag("td", seconds(wait.longest_s), class_="number"),
                tag("td", str(wait.cases), class_="number"),
                tag("td", tag("bdi", shorten(wait.target, 300))),
            )
            for wait in waits[:_BALANCES]
        ]
        blocks += [
            tag("h3", "Waiting for GPUs"),
            table(("in all", "longest", "cases", "target"), rows, "waits for GPUs"),
        ]
    blocks.append(remote_block(report))
    if not any(blocks):
        return Markup()
    return tag("section", tag("h2", "Caches and GPUs"), *blocks, id="caches")


def time_section(report: Report) -> Markup:
    """Return a timeline of each invocation."""
    drawn = []
    for number, invocation in enumerate(report.invocations[:8]):
        runs: list[RunRecord] = [run for run in report.runs if run.invocation == number]
        picture = timeline(runs)
        if picture is not None:
            title = tag("h3", invocation.name) if len(report.invocations) > 1 else ""
            drawn.append(join([title, tag("figure", picture)]))
    return tag("section", tag("h2", "Timeline of workers"), *drawn, id="timeline") if drawn else Markup()
