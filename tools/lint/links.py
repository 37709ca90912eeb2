"""Links from one page of the documentation to another file of the repository."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["broken_links"]

# `[text](target)`; a target with a scheme is somebody else's, and one that starts with # is on the same page.
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
# What looks like a link in code is none.
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def broken_links(pages: Iterable[str]) -> list[str]:
    """Say which links lead nowhere.

    Args:
        pages: Markdown files, as paths from the folder the program is in.
    """
    return [
        f"{page}: the link to {target} leads nowhere"
        for page in pages
        for target in _LINK.findall(_CODE.sub("", Path(page).read_text(encoding="utf-8")))
        if not (Path(page).parent / target).exists()
    ]
