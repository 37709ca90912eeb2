"""Converts docstrings in Google style to Markdown, and writes the pages that are made of them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# Sections with lines of the form `name: text`.
_LISTS = ("Args", "Attributes", "Raises")
_SECTIONS = (*_LISTS, "Returns", "Yields")

_HEADING = re.compile(rf"^({'|'.join(_SECTIONS)}):$")
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+): (.*)$")


class ApiError(Exception):
    """A source lacks what the page needs, or has a form that its program cannot read. The text has one line."""


def write_page(program: str, page: Callable[[Sequence[str]], str], cause: str, way_out: str) -> int:
    """Run a program `<page> <source> ...`: write the page of the sources, and return the exit status."""
    target, *names = sys.argv[1:]
    try:
        text = page(names)
    except ApiError as error:
        sys.stderr.write(f"{program}: {error}.\n{cause}\n{way_out}\n")
        return 1
    Path(target).write_text(text, encoding="utf-8")
    return 0


def split(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the sections by name, all without their indentation."""
    parts: dict[str, list[str]] = {"": []}
    current = parts[""]
    for line in inspect.cleandoc(docstring).splitlines():
        if heading := _HEADING.match(line):
            current = parts.setdefault(heading[1], [])
        else:
            current.append(line)
    text = {name: inspect.cleandoc("\n".join(["", *lines])).strip() for name, lines in parts.items()}
    return text.pop(""), text


def entries(section: str) -> dict[str, str]:
    """Return the entries of a section: name -> text on one line."""
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if entry := _ENTRY.match(line):
            name = entry[1]
            found[name] = entry[2]
        elif name:
            found[name] += f" {line.strip()}"
    return found


def escaped(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|")


def markdown(docstring: str, *, without: Sequence[str] = ()) -> str:
    """Return a docstring as paragraphs and lists of Markdown, without some of its sections."""
    text, sections = split(docstring)
    return "\n\n".join(_blocks(text, {name: body for name, body in sections.items() if name not in without}))


def _blocks(text: str, sections: dict[str, str]) -> Iterator[str]:
    if text:
        # In reStructuredText, code follows a paragraph that ends like this; in Markdown the indentation is enough.
        yield re.sub(r"::$", ":", text, flags=re.MULTILINE)
    for name, body in sections.items():
        if name in _LISTS:
            items = "\n".join(f"- `{entry}`: {' '.join(told.split())}" for entry, told in entries(body).items())
            yield f"{name}:\n\n{items}"
        else:
            yield f"{name}: {' '.join(body.split())}"
