"""Checks the links from a page of the documentation to another file of the repository, and to a heading of a page."""

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
