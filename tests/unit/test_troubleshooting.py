"""The page of troubles quotes errors that the library still prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dist_testing

_LIBRARY = Path(dist_testing.__file__).parent
_PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
_HEADINGS = re.findall(r"^### (.+)$", _PAGE, re.MULTILINE)
# Code in backticks, one or two. What else a heading says is a text of another program, or no text.
_QUOTES = [quote for heading in _HEADINGS for _, quote in re.findall(r"(`+)(.+?)\1", heading)]
# What differs from error to error: placeholders of the page, and numbers.
_VARIABLE = re.compile(r"<[^<>]*>|\d+")


@pytest.fixture(scope="module")
def sources() -> str:
    """The text of all files of the library that can hold an error."""
    paths = [path for pattern in ("*.py", "*.bzl") for path in sorted(_LIBRARY.rglob(pattern))]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


@pytest.mark.parametrize("quote", _QUOTES)
def test_the_library_still_has_the_text(quote: str, sources: str) -> None:
    """If this fails, users search the page for the words of an error, and find nothing."""
    longest = max(_VARIABLE.split(quote), key=len).strip()
    assert len(longest) >= 8
    assert longest in sources


def test_every_symptom_has_its_cause_and_its_fix() -> None:
    """If this fails, an entry leaves its reader with the symptom alone, or two entries have the same link."""
    entries = re.split(r"^###? .+$", _PAGE, flags=re.MULTILINE)[1:]
    entries = [entry for entry in entries if entry.strip()]
    assert len(entries) == len(_HEADINGS) == len(set(_HEADINGS)) >= 40
    for entry in entries:
        assert entry.count("**Cause.**") == entry.count("**Fix.**") == 1, entry
