"""The part of the page about failures: for each, the culprit's block first, then victims, ledger, stacks and logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import CaseRecord, RankRecord
from dist_testing.report.facts import Failure, headline
from dist_testing.report.markup import Markup, join, table, tag
from dist_testing.report.model import LogRecord, is_label
from dist_testing.report.packed import Packer
from dist_testing.report.pictures import lanes
from dist_testing.report.story import Part, story_of
from dist_testing.report.words import WORDS, plural, ranks_text, seconds, slug

# Failures with all details. More are in the table of all cases: no reader needs so many, and the page must open.
_MAX_SHOWN = 200
# Characters of the texts of all failures together, and of one. The head and the tail of a longer text stay.
_ALL_TEXTS_CHARS = 1_600_000
_MOST_TEXT_CHARS = 40_000
_LEAST_TEXT_CHARS = 4_000
# Failures that are open when the page opens.
_OPEN = 3
_MAX_RANK_ROWS = 64
# Lines of a log that stand in the page itself; the whole log needs JavaScript to unpack.
_TAIL_LINES = 12
_MAX_MESSAGE_CHARS = 600
# Where an executor or a sandbox has put packages and files. In stacks it pushes the rest of the line out of sight.
_DEEP = re.compile(r'(?<=File ")/[^"\n]*(?:/(?=site-packages/)|\.runfiles/[^/"\n]+/)')


@dataclass(frozen=True, slots=True)
class _Place:
    failure: Failure
    number: int
    others: Sequence[Failure]


def _anchor(number: int) -> str:
    """Return the anchor of a failure, from 0."""
    return f"failure-{number + 1}"


def anchors(groups: Sequence[Sequence[Failure]]) -> dict[tuple[int, int], str]:
    """Return the anchor of each shown failure, by the identities of its run and its case. The groups are of `alike`."""
    return {
        (id(failure.run), id(failure.case)): _anchor(number)
        for number, group in enumerate(groups[:_MAX_SHOWN])
        for failure in group
    }


def failure_section(groups: Sequence[Sequence[Failure]], packer: Packer) -> Markup:
    """Return the section. There is one even without failures, which says so.

    Args:
        groups: The failures, those that are alike together, and those that count first (`facts.alike`).
        packer: Takes the logs.
    """
    if not groups:
        return tag("section", tag("h2", "Failures"), tag("p", "Nothing failed.", class_="calm"), id="failures")
    shown = groups[:_MAX_SHOWN]
    limit = min(_MOST_TEXT_CHARS, max(_LEAST_TEXT_CHARS, _ALL_TEXTS_CHARS // len(shown)))
    articles = [_article(_Place(group[0], number, group[1:]), limit, packer) for number, group in enumerate(shown)]
    more = sum(map(len, groups[_MAX_SHOWN:]))
    rest = tag("p", f"{plural(more, 'more failure')}: see the table of all cases.", class_="muted") if more else ""
    return tag("section", tag("h2", f"Failures ({sum(map(len, groups))})"), *articles, rest, id="failures")


def _article(place: _Place, limit: int, packer: Packer) -> Markup:
    run, case = place.failure.run, place.failure.case
    named = case is not None and is_label(run.target)
    chips = [tag("span", shorten(run.target, 300), class_="chip target")] if named else []
    if run.part:
        chips.append(tag("span", run.part, class_="chip"))
    if run.host and run.strategy == "remote":
        chips.append(tag("span", f"on {shorten(run.host, 100)}", class_="chip"))
    if run.backend:
        chips.append(tag("span", shorten(run.backend, 100), class_="chip"))
    if case is not None and case.world_size:
        chips.append(tag("span", f"world of {case.world_size}", class_="chip"))
    word = _word(place.failure)
    if place.others:
        chips.append(tag("span", f"and {_others(place.others)}", class_="chip"))
    recovered = tag("span", "a later attempt passed", class_="chip calm-chip") if place.failure.recovered else ""
    summary = tag(
        "summary",
        tag("span", word, class_=f"badge st-{case.status if case else 'failed'}"),
        tag("h3", tag("bdi", shorten(place.failure.name, _MAX_MESSAGE_CHARS))),
        tag("span", tag("bdi", shorten(headline(run, case), _MAX_MESSAGE_CHARS)), class_="headline"),
        tag("span", *chips, recovered, class_="chips") if chips or recovered else "",
    )
    body = _case_body(case, run.logs, limit, packer) if case is not None else _run_body(place.failure, packer)
    is_open = place.number < _OPEN and not place.failure.recovered
    return tag("details", summary, body, class_="failure", id=_anchor(place.number), open=is_open)


def _others(others: Sequence[Failure]) -> str:
    """Return which further runs failed in the same way."""
    parts = [other.run.part for other in others if other.run.part]
    named = f": {'; '.join(parts[:6])}{'; ...' if len(parts) > 6 else ''}" if parts else ""
    return f"{plural(len(others), 'more run')} like this{named}"


def _word(failure: Failure) -> str:
    case = failure.case
    if case is None:
        return failure.run.status.lower() or "failed"
    return shorten(case.cause, 100) if case.cause not in ("", "none", "failure") else WORDS[case.status]


def _run_body(failure: Failure, packer: Packer) -> Markup:
    run = failure.run
    hint = "The end of its log usually tells." if run.logs else "Its log is not on this machine."
    return tag("div", tag("p", hint), *_logs(run.logs, packer), class_="body")


def _case_body(case: CaseRecord, logs: Sequence[LogRecord], limit: int, packer: Packer) -> Markup:
    story = story_of(shorten(case.text, limit))
    blocks: list[object] = [
        tag("div", tag("h4", part.title), _pre(part.text) if part.text else "", class_="culprit")
        for part in story.culprits
    ]
    if story.victims or case.victims:
        fate = story.victims or f"{ranks_text(case.victims)} (consequence, not cause)."
        blocks.append(tag("p", tag("strong", "Victims: "), fate, class_="victims"))
    if (picture := lanes(case)) is not None:
        blocks.append(picture)
    if (ledger := _ledger(case, story.ledger)) is not None:
        blocks.append(ledger)
    if story.is_plain:
        blocks.append(_pre(story.head) if story.head else "")
    elif told := story.head.partition("\n")[2].strip():
        # The first line is the headline.
        blocks.append(tag("p", told, class_="told"))
    if case.ranks:
        blocks.append(_fold(plural(len(case.ranks), "rank"), _rank_table(case)))
    blocks += [_fold(_title(part), _pre(_shown(part))) for part in story.parts if part.kind != "culprit" and part.text]
    if case.leaked:
        title = f"left behind: {plural(len(case.leaked), 'process', 'processes')}"
        blocks.append(_fold(title, _pre("\n".join(case.leaked))))
    warned = [(rank.rank, line) for rank in case.ranks for line in rank.warnings]
    if warned:
        lines = "\n".join(f"rank {rank}: {line}" for rank, line in warned[:100])
        blocks.append(_fold(plural(len(warned), "warning"), _pre(shorten(lines, limit))))
    blocks += _logs(_of_case(logs, case), packer)
    if story.command:
        blocks.append(tag("p", "This case alone: ", tag("code", story.command), class_="command"))
    return tag("div", *blocks, class_="body")


def _ledger(case: CaseRecord, told: Sequence[str]) -> Markup | None:
    """Return what each rank waits for, and its last collective calls; ranks that do the same stand together."""
    alike: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    for ledger in case.ledgers:
        calls = tuple(call.words for call in sorted(ledger.calls, key=lambda call: not call.is_done))
        alike.setdefault((ledger.state, ledger.place, calls), []).append(ledger.rank)
    rows = [tag("li", shorten(line, _MAX_MESSAGE_CHARS)) for line in told] if not alike else []
    for (state, place, calls), ranks in list(alike.items())[:_MAX_RANK_ROWS]:
        where = f" ({shorten(place, 300)})" if place else ""
        line = f"{shorten(state, _MAX_MESSAGE_CHARS)}{where}"
        last = shorten("\n".join(calls), _LEAST_TEXT_CHARS)
        few = tag("span", last.replace("\n", "; "), class_="muted under") if calls else ""
        folded = _fold(f"last {len(calls)} collective calls", _pre(last)) if len(calls) > 2 else few
        rows.append(tag("li", tag("strong", f"{ranks_text(tuple(ranks))}: "), line, folded))
    return tag("div", tag("h4", "Collective ledger"), tag("ul", *rows), class_="ledger") if rows else None


def _title(part: Part) -> str:
    return part.title or part.kind


def _shown(part: Part) -> str:
    return _DEEP.sub(".../", part.text) if part.kind == "stacks" else part.text


def _pre(text: str) -> Markup:
    # It may scroll, and the keyboard must be able to.
    return tag("pre", text, tabindex="0")


def _fold(title: str, content: Markup) -> Markup:
    return tag("details", tag("summary", title), content, class_="fold")


def _rank_table(case: CaseRecord) -> Markup:
    rows = [_rank_row(case, rank) for rank in case.ranks[:_MAX_RANK_ROWS]]
    left_out = len(case.ranks) - len(rows)
    more = tag("p", f"{plural(left_out, 'more rank')} not listed.", class_="muted") if left_out > 0 else ""
    return join([table(("rank", "outcome", "phase", "in", "after"), rows, "ranks"), more])


def _rank_row(case: CaseRecord, rank: RankRecord) -> Markup:
    after = "" if rank.seen_s is None else seconds(max(0.0, rank.seen_s))
    role = "culprit" if rank.rank == case.culprit else "victim" if rank.rank in case.victims else ""
    described = rank.description or rank.outcome or "unknown"
    cells = (f"{rank.rank}", shorten(described, _MAX_MESSAGE_CHARS), rank.phase, rank.operation, after)
    return tag("tr", *[tag("td", cell) for cell in cells], class_=role or None)


def _of_case(logs: Sequence[LogRecord], case: CaseRecord) -> Iterator[LogRecord]:
    """Yield the logs of a case: those of its ranks, and the log of the whole run."""
    own = f"{slug(case.nodeid)}.rank-" if case.nodeid else None
    for log in logs:
        if ".rank-" not in log.name or (own is not None and log.name.startswith(own)):
            yield log


def _logs(logs: Iterator[LogRecord] | Sequence[LogRecord], packer: Packer) -> Iterator[Markup]:
    for log in logs:
        if not log.text:
            yield tag("p", "Log not in this page: ", tag("code", log.place), class_="muted")
            continue
        lines = log.text.rstrip().split("\n")
        tail = shorten("\n".join(lines[-_TAIL_LINES:]), _LEAST_TEXT_CHARS)
        number = packer.log(log.text) if len(lines) > _TAIL_LINES else None
        title = f"{log.name} ({plural(len(lines), 'line')})"
        whole = tag("p", f"The last {_TAIL_LINES} lines; the whole: ", tag("code", log.place), class_="muted")
        yield tag(
            "details",
            tag("summary", title),
            whole if len(lines) > _TAIL_LINES else "",
            _pre(tail),
            class_="fold log",
            data_log=number,
        )
