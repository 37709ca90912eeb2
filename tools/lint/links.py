"""Checks the links from a page of the documentation to another file of the repository."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# `[text](target)`; a target with a scheme is outside the repository, and one that starts with # is on the same page.
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
# Code may contain text that only looks like a link.
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def broken_links(pages: Iterable[str]) -> list[str]:
    """Return the broken links, in words.

    Args:
        pages: Markdown files, as paths relative to the current folder.
    """
    return [
        f"{page}: the link to {target} is broken"
        for page in pages
        for target in _LINK.findall(_CODE.sub("", Path(page).read_text(encoding="utf-8")))
        if not (Path(page).parent / target).exists()
    ]
