"""Turns pages of the repository into pages of the site: their places, links and order."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# The page that names all others, in their groups.
CONTENTS = "docs/README.md"
# Page of the repository -> page of the site, where it is not the path below docs/. A site has one start page.
_PLACES = {"README.md": "index.md", CONTENTS: "contents.md"}
# Code may have text that only looks like a link, so an alternative takes it first.
_CODE_OR_LINK = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|(?<=\]\()(?!\w+:)(?P<target>[^)\s]+)", re.MULTILINE | re.DOTALL)
_GROUP_OR_LINK = re.compile(r"^## (?P<group>.+)$|\[(?P<name>[^]]+)\]\((?P<target>[^)#]+\.md)\)", re.MULTILINE)
# An element that the browser fetches from another host.
_FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]*)")

Navigation = list[dict[str, "str | Navigation"]]


def places(files: Iterable[str]) -> dict[str, str]:
    """Return the place of each page in the site, by its path in the repository. Other files have none."""
    return {
        file: _PLACES.get(file, file.removeprefix("docs/"))
        for file in files
        if file == "README.md" or (file.startswith("docs/") and file.endswith(".md"))
    }


def page_text(root: Path, page: str, where: Mapping[str, str], repository: str) -> str:
    """Return a page with its links as the site needs them: `where` is the result of `places`.

    A link to a file that is no page of the site leads to the repository's address in the browser. A link to nothing
    stays, and fails the build.
    """

    def link(found: re.Match[str]) -> str:
        path, hash_sign, anchor = (found["target"] or "").partition("#")
        if not path:
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if file in where:
            return os.path.relpath(where[file], posixpath.dirname(where[page]) or ".") + hash_sign + anchor
        if not (root / file).exists():
            return found[0]
        return f"{repository}/{'tree' if (root / file).is_dir() else 'blob'}/main/{file}{hash_sign}{anchor}"

    return _CODE_OR_LINK.sub(link, (root / page).read_text(encoding="utf-8"))


def navigation(contents: str) -> Navigation:
    """Return the groups and pages of the text of the page `CONTENTS` in their order, as MkDocs' `nav`."""
    found: Navigation = [{"Overview": _PLACES["README.md"]}, {"Contents": _PLACES[CONTENTS]}]
    for match in _GROUP_OR_LINK.finditer(contents):
        if match["group"]:
            pages: Navigation = []
            found.append({match["group"]: pages})
        else:
            name = match["name"]
            pages.append({name[0].upper() + name[1:]: match["target"]})
    return found


def fetched(site: Path) -> Iterator[str]:
    """Yield what the pages of a site fetch from other hosts, each in words."""
    for page in sorted(site.rglob("*.html")):
        for address in _FETCHED.findall(page.read_text(encoding="utf-8")):
            yield f"{page.relative_to(site)} fetches {address}"
