"""Numbers, names and texts as people read them."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from dist_testing.core.ground.record import MAX_S, Status

# A browser shows none of these, or lets them change the direction of the text around them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)
# Colours and moves of a terminal.
_TERMINAL = re.compile("\x1b\\[[0-9;:?]*[A-Za-z]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
# A word for each status, after a number.
WORDS: dict[Status, str] = {
    "failed": "failed",
    "error": "infrastructure failed",
    "unfinished": "not finished",
    "xpassed": "passed unexpectedly",
    "xfailed": "failed as expected",
    "skipped": "skipped",
    "passed": "passed",
}


def seconds(value: float) -> str:
    """Return a duration: "0 s", "8 ms", "1.42 s", "53 s", "4 min 10 s", "2 h 5 min"."""
    if not value < MAX_S:
        # A damaged file, or another program's.
        return "unknown"
    if value < 0.0005:
        return "0 s"
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 99.5:
        return f"{value:.0f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def utc(wall_s: float) -> str:
    """Return a time of day in UTC: "2026-11-22 14:03:05 UTC"; the number itself if it is no date."""
    try:
        return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{wall_s:g} s after 1970"


def count_of(value: int) -> str:
    """Return a number with spaces that do not break: "12 345"."""
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def plural(value: int, one: str, many: str = "") -> str:
    """Return a number and its noun: "1 case", "3 cases"."""
    return f"{count_of(value)} {one if value == 1 else many or one + 's'}"


def size(value: int) -> str:
    """Return a size: "812 bytes", "64 KiB", "1.5 MiB"."""
    if value < 1024:
        return f"{value} bytes"
    return f"{value / 1024:.0f} KiB" if value < 1 << 20 else f"{value / (1 << 20):.1f} MiB"


def percent(rate: float) -> str:
    """Return a rate: "0.34 %", "12 %"."""
    value = rate * 100
    digits = 0 if value >= 9.95 else 1 if value >= 0.95 else 2
    return f"{value:.{digits}f}\N{NO-BREAK SPACE}%"


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Return ranks in words: "rank 3", "ranks 0-6, 8"."""
    ordered = sorted(set(ranks))
    # Neighbours have the same distance from their place.
    runs = [
        [rank for _, rank in run] for _, run in itertools.groupby(enumerate(ordered), lambda item: item[1] - item[0])
    ]
    parts = [f"{run[0]}\u2013{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(parts)}"


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Return key -> its values: what many have in common stands there once."""
    groups: dict[_Key, list[_Value]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


def slug(name: str) -> str:
    """Return a name as the files of its logs have it (`core.engine.kept_files`)."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", name).strip("-")[-120:]


def clean(value: str) -> str:
    """Return a text with visible marks in place of characters that show nothing or turn the text around.

    Colours of a terminal are left out. A line feed and a tab stay, and other line ends become a line feed.
    """
    plain = _TERMINAL.sub("", value).replace("\r\n", "\n")
    return _INVISIBLE.sub(lambda match: _visible(match[0]), plain)


def one_line(*texts: str) -> str:
    """Return texts one after the other, as one clean line."""
    return " ".join(clean(" ".join(texts)).split())


def printable(line: str) -> str:
    """Return a line as one clean line, with its first blanks. A line feed in a text of a test does not end it."""
    return clean(line).replace("\n", " ")


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table for a terminal, a line for each row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        # Unicode has a picture for each.
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"\u2039U+{code:04X}\u203a"
