"""Checks the pages of the documentation: their links, and words and sentences that a reader has to read twice."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# `[text](target)`; a target with a scheme is outside the repository.
_LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)")
# Code may contain text that only looks like a link or a heading.
BLOCK, CODE = r"^```.*?^```", r"`[^`\n]*`"
BLOCKS = re.compile(BLOCK, re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def broken_links(pages: Iterable[str]) -> list[str]:
    """Return the broken links of Markdown files, in words; their paths are relative to the current directory."""
    return [
        f"{page}: the link to {target} is broken"
        for page in pages
        for target in _LINK.findall(re.sub(CODE, "", _text(page)))
        if not _leads_somewhere(Path(page), target)
    ]


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    if not anchor or file.suffix != ".md":
        return file.exists()
    return file.is_file() and anchor in _anchors(_text(file))


def _text(page: str | Path) -> str:
    return BLOCKS.sub("", Path(page).read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


# Code and quoted output are not the page's own words.
_CODE = re.compile(rf"{BLOCK}|{CODE}|\*[^*\n]+\*", re.MULTILINE | re.DOTALL)
# Pattern to the words that take its place.
_WORDS = {
    r"the own \w+": "its own ...",
    r"also (if|where|those|when)": "even if, including",
    r"for ever": "forever, or a time",
    r"in turns": "alternately",
    r"way out": "fix",
    r"mend(ed|s)?": "fix",
    r"is none of": "does not belong to",
    r"(nobody|somebody)": "no person, the team, ...",
    r"what lives": "the processes that run",
    r"(is|are) told": "the report shows ...",
}


def wrong_words(pages: Iterable[str]) -> list[str]:
    """Return a complaint for each such word in the pages, which are Markdown files."""
    return [
        f"{page}:{text[: found.start()].count(chr(10)) + 1}: {found[0]!r}: write {better!r}"
        for page in pages
        for text in [_CODE.sub(lambda code: "\n" * code[0].count("\n"), Path(page).read_text(encoding="utf-8"))]
        for pattern, better in _WORDS.items()
        for found in re.finditer(rf"\b{pattern}\b", text, re.IGNORECASE)
    ]


_MOST_WORDS = 25
# A piece of code, or a quoted output, is one word.
_ONE_WORD = re.compile(rf'{CODE}|"[^"\n]+"', re.MULTILINE)
_LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# Where a text ends without a full stop: an empty line, a heading, an item of a list, a cell of a table.
_PARTS = re.compile(r"\n\s*\n|^#+ .*$|^\s*(?:[-*>]|\d+\.)\s|\|", re.MULTILINE)
_END = re.compile(r"[.!?][)*]*(?=\s|$)")
_SPOKEN = re.compile(r"[\w'/.+-]*\w[\w'/.+-]*")


def long_sentences(pages: Iterable[str]) -> list[str]:
    """Return a complaint for each such sentence in the pages, which are Markdown files."""
    return [
        f"{page}: {len(words)} words in a sentence; at most {_MOST_WORDS}: {' '.join(words[:9])} ..."
        for page in pages
        for part in _PARTS.split(_plain(Path(page).read_text(encoding="utf-8")))
        for sentence in _END.split(part or "")
        if len(words := _SPOKEN.findall(sentence)) > _MOST_WORDS
    ]


def _plain(text: str) -> str:
    return _LINK_TEXT.sub(r"\1", _ONE_WORD.sub("code", BLOCKS.sub("\n\n", text)))
