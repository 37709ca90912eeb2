"""The steps of a page that leads a reader: files to write, and commands with the output that they print.

    <!-- test_x.py -->              the next block of code is this file
    ```console                      a command after "$ ", and its output
    $ pytest test_x.py

A line "..." in an output stands for any lines. What differs between runs is masked: times, pids, versions, the number
of signs in a rule. It imports nothing of the library, because `tools/release` runs pages with an installed one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^(?:<!-- (?P<file>\S+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MASKS = (
    (re.compile(r"\d+\.\d+ ?s\b(?: \(\d+:\d\d:\d\d\))?"), "TIME"),
    (re.compile(r"([=_-])\1{2,}"), r"\1\1\1"),
    (re.compile(r"\b(Python|pytest-|pluggy-|dist_testing-) ?\d[\w.+]*"), r"\1VERSION"),
    # Tests start it so; users as the page says.
    (re.compile("python -m pytest"), "pytest"),
)
_ANY_LINES = "..."


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file that the reader writes."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class PageCommand:
    """A command that the reader runs, and the output that the page shows."""

    words: tuple[str, ...]
    shown: str

    def missing(self, printed: str) -> str:
        """Return the first lines of the shown output that were not printed in this order; "" if all were."""
        lines = _masked(printed)
        parts = [part.strip("\n").splitlines() for part in _masked_text(self.shown).split(f"\n{_ANY_LINES}\n")]
        for part in parts:
            end = len(part)
            start = next((at for at in range(len(lines)) if lines[at : at + end] == part), None)
            if start is None:
                return "\n".join(part)
            lines = lines[start + end :]
        return ""


def page_files(page: Path) -> Iterator[PageFile]:
    """Yield the files of a page in order."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["file"]:
            yield PageFile(block["file"], block["text"])


def page_steps(page: Path) -> Iterator[PageFile | PageCommand]:
    """Yield the steps of a page in order. Other blocks of code are no steps."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["file"]:
            yield PageFile(block["file"], block["text"])
        elif block["kind"] == "console":
            command, _, shown = block["text"].removeprefix("$ ").partition("\n")
            yield PageCommand(tuple(shlex.split(command)), shown)


def _masked(text: str) -> list[str]:
    return _masked_text(text)[1:-1].split("\n")


def _masked_text(text: str) -> str:
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    # Framed by line ends, so that "..." in the first or the last line is one between lines, too.
    return "\n" + "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
