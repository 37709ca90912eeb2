"""Makes texts of tests fit for a log: of limited size, and without characters that a terminal obeys."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dist_testing.core.ground.error_text import shorten

# Colours and other attributes of text: they say nothing in a report.
_ATTRIBUTES = re.compile(r"\x1b\[[0-9;:]*m")
# Control characters but tab and line feed; marks that change the direction of the text after them, or hide in it; and
# lone surrogates, which stand for bytes that are no text.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
# Of the lines that a limit leaves, this share is from the beginning: the end of a traceback says most.
_HEAD_SHARE = 1 / 3


# Limits of the culprit's text in the log, and of each line: a longer text hides what stands before it, also in the XML
# file and on pages that show logs. Lines, characters, characters.
MAX_LINES = 600
MAX_CHARS = 48_000
_MAX_LINE_CHARS = 2000
# Python 3.13 marks a part of nearly every line of a traceback.
_POINTERS = re.compile(r"^ +[~^]+\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Quote:
    """A text of a rank in a report.

    Attributes:
        text: The whole text.
        lines: Number of lines for which the log has room; None for no limit.
        ends_only: Whether the log gets its end only, and not its beginning too.
    """

    text: str
    lines: int | None
    ends_only: bool = False

    def in_log(self) -> str:
        """Return what the log has room for."""
        text = self.text
        if self.ends_only and self.lines is not None and text.count("\n") >= self.lines:
            # A line of the test is worth more than they are.
            text = _POINTERS.sub("", text)
        chars = None if self.lines is None else MAX_CHARS
        return "\n".join(cut_lines(text, self.lines, chars, _MAX_LINE_CHARS, ends_only=self.ends_only))

    def whole(self) -> str:
        """Return the text with the line ends of a report."""
        return "\n".join(self.text.splitlines())


def printable(text: str) -> str:
    r"""Return the text with each character that a terminal obeys, or cannot show, as an escape such as `\x1b`.

    Tabs and line feeds stay, and attributes such as colours are left out.
    """

    def escape(match: re.Match[str]) -> str:
        number = ord(match[0])
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _OBEYED.sub(escape, _ATTRIBUTES.sub("", text.replace("\r\n", "\n")))


def print_line(text: str) -> None:
    """Print a line at once, with an escape for each character that the encoding of standard output lacks."""
    # A notebook's stream may have no encoding, and a daemon no stream.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def cut_lines(
    text: str,
    lines: int | None,
    chars: int | None = None,
    line_chars: int | None = None,
    *,
    ends_only: bool = False,
) -> list[str]:
    """Return the lines of a text, without those in the middle, or with `ends_only` at the beginning, if it is too long.

    `lines` limits them, `chars` the characters of all without the line on what is left out, `line_chars` each line.
    """
    head_share = 0.0 if ends_only else _HEAD_SHARE
    every = text.splitlines()
    if line_chars is not None:
        every = [shorten(line, line_chars).replace("\n", " ") if len(line) > line_chars else line for line in every]
    head, tail = len(every), 0
    if lines is not None and len(every) > lines:
        head = int(lines * head_share)
        tail = lines - head
    if chars is not None and sum(map(len, every)) > chars:
        head = min(head, _count_within(every, chars * head_share))
        left = chars - sum(map(len, every[:head]))
        tail = min(tail or len(every) - head, _count_within(every[::-1], left))
    left_out = len(every) - head - tail
    if left_out <= 0:
        return every
    return [*every[:head], f"... {left_out} lines left out ...", *every[len(every) - tail :]]


def _count_within(lines: Sequence[str], chars: float) -> int:
    """Return how many of the first lines have together at most this many characters."""
    return sum(used <= chars for used in itertools.accumulate(map(len, lines)))
