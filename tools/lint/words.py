"""Finds words in the pages for users that a reader whose second language is English has to read twice."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from links import BLOCK, CODE

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
