"""The page of troubles quotes errors that the library still prints."""

from __future__ import annotations

import re
from email import message
from importlib import metadata
from pathlib import Path

import pytest

import dist_testing
from dist_testing.core.ground import errors

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


@pytest.mark.parametrize("entry", errors.TROUBLES)
def test_an_error_has_the_address_of_its_entry(entry: str) -> None:
    """If this fails, an error sends its reader to an entry that does not exist, or to none."""
    assert entry in _HEADINGS
    for part in errors.fixed_parts(entry):
        lines = f"test_x.py: {part} 1.\nThe cause.\nDo this."
        assert str(errors.UsageError(lines)).removeprefix(lines).endswith(f"/troubleshooting.md#{errors.anchor(entry)}")


def test_the_address_is_that_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a user who has no clone gets a path that does not exist on the machine."""
    known = message.Message()
    known["Project-URL"] = "Homepage, https://host"
    known["Project-URL"] = "Documentation, https://host/docs"
    monkeypatch.setattr(metadata, "metadata", lambda name: {"dist_testing": known}[name])
    (heading, *_) = errors.TROUBLES
    text = str(errors.UsageError(f"a: {errors.fixed_parts(heading)[0]} b."))
    assert text.endswith(f"b. See https://host/docs/troubleshooting.md#{errors.anchor(heading)}")
    # An error that quotes another one has the address once.
    assert str(errors.LaunchError(text)) == text
    assert str(errors.UsageError("a: something else.")) == "a: something else."
