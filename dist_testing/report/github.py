"""Writes results for people who look at GitHub: annotations of a job, and Markdown for its summary."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import STATUSES, CaseRecord
from dist_testing.report import facts
from dist_testing.report.model import Report
from dist_testing.report.render import fragment
from dist_testing.report.words import WORDS, clean, count_of, one_line

_TEMPLATE = Path(__file__).parent / "templates" / "summary.jinja"
# GitHub shows this many annotations of one step, and a summary of this size (1 MiB; characters may need four bytes).
_MAX_ANNOTATIONS = 10
_MAX_MARKDOWN_CHARS = 200_000
_MAX_FAILURES = 50
_MAX_TEXT_CHARS = 4_000
# pytest's last line about a failure, or a frame of Python's traceback.
_PLACE = re.compile(r"^(?P<file>[^\s:\"]+\.py):(?P<line>\d+): \w+", re.MULTILINE)
# Where Bazel, a sandbox or an executor has put a file of the workspace.
_RUNFILES = re.compile(r"^/.*\.runfiles/[^/]+/")
_OF_LIBRARIES = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3\.\d+|dist_testing/(?:core|run))/")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+\.py)", line (?P<line>\d+)', re.MULTILINE)


def annotation_lines(report: Report) -> Iterator[str]:
    """Yield a workflow command for each failure, at the place in the sources where it happened."""
    found = [failure for failure in facts.failures(report) if not failure.recovered]
    for failure in found[:_MAX_ANNOTATIONS]:
        place = _place(failure.case) if failure.case is not None else ""
        title = _property(shorten(failure.name, 200))
        message = f"{failure.run.target}: {shorten(facts.headline(failure.run, failure.case), 1000)}"
        yield f"::error {place}title={title}::{_data(message)}"
    if len(found) > _MAX_ANNOTATIONS:
        yield f"::notice title=dist_testing::{len(found) - _MAX_ANNOTATIONS} more failures: see the report of the job"


def _place(case: CaseRecord) -> str:
    """Return the properties of an annotation that name its place: the culprit's last line in the user's sources.

    Without such a line, because the culprit crashed or no rank is to blame, it is the file of the case.
    """
    own = case.nodeid.partition("::")[0]
    story = facts.story_of(case.text)
    # The stack of a culprit that crashed or hangs is in its output, or among the stacks of all ranks.
    of_culprit = re.compile(rf"output of rank {case.culprit}$|stacks of rank\(s\) ([\d, ]+, )?{case.culprit}(,|$)")
    pieces = [*story.culprits, *[part for part in story.parts if of_culprit.match(part.title)]]
    for piece in [part.text for part in pieces] or ([case.text] if story.is_plain else []):
        found = list(_PLACE.finditer(piece)) or list(_FRAME.finditer(piece))
        for match in found if "(most recent call first)" in piece else reversed(found):
            if file := _source(match["file"], own):
                return f"file={_property(file)},line={min(int(match['line'][:9]), 10_000_000)},"
    file = _source(own, own)
    return f"file={_property(file)}," if file.endswith(".py") else ""


def _source(path: str, own: str) -> str:
    """Return a path of a traceback from the root of the checkout, as `own` is; "" if it is no source of the user."""
    path = _RUNFILES.sub("", path, count=1)
    if _OF_LIBRARIES.search(path):
        return ""
    if not path.startswith(("/", "../")):
        return path
    # $GITHUB_WORKSPACE (CI): root of the checkout, for annotations (default: the working directory).
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    found = os.path.relpath(path, root)
    if not found.startswith("../"):
        return found
    return own if own and path.endswith(f"/{own}") else ""


def _data(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(report: Report, title: str = "") -> str:
    """Return the results as Markdown, for the summary of a job or a comment."""
    counts = facts.status_counts(report)
    told = ", ".join(f"{count_of(counts[status])} {WORDS[status]}" for status in STATUSES if counts[status])
    found = facts.failures(report)
    reasons: Counter[tuple[str, str]] = Counter()
    for line in facts.ledger(report):
        if line.kind != "cached":
            reasons[line.kind, line.reason] += line.count or 1
    text = fragment(
        _TEMPLATE,
        title=title or "Test report",
        told=told or "No case ran.",
        failures=[
            (failure, shorten(facts.headline(failure.run, failure.case), 600), _first(failure.case))
            for failure in found[:_MAX_FAILURES]
        ],
        quarantined=facts.quarantined(report),
        failures_left=len(found) - _MAX_FAILURES,
        reasons=sorted(reasons.items(), key=lambda item: (-item[1], item[0])),
        slow=[one for one in facts.slow_cases(report, 5) if one.duration_s >= 1],
        problems=report.problems,
        inline=_inline,
        code=_code,
        fenced=_fenced,
    )
    return text[:_MAX_MARKDOWN_CHARS].rstrip() + "\n"


def _first(case: CaseRecord | None) -> str:
    """Return what a case tells about its culprit, or all that it tells."""
    if case is None:
        return ""
    culprits = facts.story_of(case.text).culprits
    told = culprits[0].text if culprits else case.text
    return told.strip("\n") if told.strip() else ""


def _fenced(text: str) -> str:
    """Return a text as a block of Markdown."""
    # Longer than any run of backquotes inside, which would end the block.
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{clean(shorten(text, _MAX_TEXT_CHARS))}\n{fence}"


def _inline(text: str) -> str:
    """Return a text as Markdown without any formatting, in one line."""
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A backslash before a mark makes it plain; "@" would call people, and "://" and "www." would make links.
    plain = re.sub(r"([\\`*_\[\]()#|~!])", r"\\\1", plain)
    return plain.replace("@", "&#64;").replace("://", ":&#8203;//").replace("www.", "www&#46;")


def _code(text: str) -> str:
    """Return a text as code, in one line, also inside a table."""
    # Marks count inside of the element, too.
    return f"<code>{_inline(shorten(text, 300))}</code>"
