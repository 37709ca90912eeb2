"""Finds sentences in the pages for users that are longer than a reader takes in at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from links import BLOCKS, CODE

_MOST_WORDS = 25
# A piece of code, or a quoted output, is one word.
_ONE_WORD = re.compile(rf'{CODE}|"[^"\n]+"', re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# Where a text ends without a full stop: an empty line, a heading, an item of a list, a cell of a table.
_PARTS = re.compile(r"\n\s*\n|^#+ .*$|^\s*(?:[-*>]|\d+\.)\s|\|", re.MULTILINE)
_END = re.compile(r"[.!?][)*]*(?=\s|$)")
_WORD = re.compile(r"[\w'/.+-]*\w[\w'/.+-]*")


def long_sentences(pages: Iterable[str]) -> list[str]:
    """Return a complaint for each such sentence in the pages, which are Markdown files."""
    return [
        f"{page}: {len(words)} words in a sentence; at most {_MOST_WORDS}: {' '.join(words[:9])} ..."
        for page in pages
        for part in _PARTS.split(_plain(Path(page).read_text(encoding="utf-8")))
        for sentence in _END.split(part or "")
        if len(words := _WORD.findall(sentence)) > _MOST_WORDS
    ]


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", _ONE_WORD.sub("code", BLOCKS.sub("\n\n", text)))
