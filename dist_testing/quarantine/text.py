"""Rows as text: removes rows from a file and keeps the rest of it, and writes a new row."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from datetime import date
from pathlib import Path

from dist_testing.core.ground.errors import UsageError
from dist_testing.quarantine.rows import rows_in

_HEADER = re.compile(r"\s*\[\[\s*row\s*\]\]\s*(#.*)?")


def without_rows(text: str, path: Path, numbers: Collection[int]) -> str:
    """Return the text of a file without rows, by their numbers. All other text stays as it is.

    Comments directly above or below a row go with it; a blank line separates others from it.
    """
    lines = text.splitlines(keepends=True)
    starts = [place for place, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip("\r\n"))]
    before = rows_in(text, path)
    kept = list(lines)
    # From the end, so that the places before stay right.
    for number in sorted(numbers, reverse=True):
        if number <= len(starts):
            begin, end = _span(lines, starts, number - 1)
            del kept[begin:end]
    shorter = "".join(kept)
    # A text in a row may look like the begin of another one, and rows may be written in another way.
    wanted = [row.cases for row in before if row.number not in numbers]
    if len(starts) != len(before) or [row.cases for row in rows_in(shorter, path)] != wanted:
        raise UsageError(
            f"{path}: {len(before)} rows, and {len(starts)} lines [[row]].\n"
            "A row is removed by its lines, from one line [[row]] to the next.\n"
            "Begin each row with a line [[row]], or remove the rows yourself."
        )
    return shorter


def _span(lines: list[str], starts: list[int], index: int) -> tuple[int, int]:
    """Return the first line of a row and the line after its last, with its comments and the blank lines after them."""
    begin = _comments_above(lines, starts[index])
    following = _comments_above(lines, starts[index + 1]) if index + 1 < len(starts) else len(lines)
    end = following
    # Back to the last line of a value.
    while lines[end - 1].strip() == "" or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    while end < following and lines[end].strip():
        end += 1
    while end < len(lines) and not lines[end].strip():
        end += 1
    while end == len(lines) and begin and not lines[begin - 1].strip():
        begin -= 1
    return begin, end


def _comments_above(lines: list[str], place: int) -> int:
    while place and lines[place - 1].lstrip().startswith("#"):
        place -= 1
    return place


def row_text(comment: str, **values: object) -> str:
    """Return a row of the file, below a comment of one line."""
    # TOML reads texts, numbers and lists as JSON has them, and dates as Python shows them.
    lines = (
        f"{key} = {value if isinstance(value, date) else json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
    )
    return "\n".join([f"# {comment}", "[[row]]", *lines])
